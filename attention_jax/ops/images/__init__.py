"""Augmentation of images: crops, mixup, AutoAugment, RandAugment."""
