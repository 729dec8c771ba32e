"""Programs compiled for chips that are not in the room: what they need of memory, operations and traffic.

`targets` has the chips and their figures, `hlo` reads what a compiler wrote, `report` puts one program's figures
together.
"""
