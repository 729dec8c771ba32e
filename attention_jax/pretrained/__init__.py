"""Models and weights of other libraries: `load_pretrained`, the readers of their files, and the tables of their names.

`load` is the door; `exchange` reads and writes weights under the names of the tables `*_names.py`; `adopt` initializes
another model from them.
"""
