"""Import and export: weight files, conversion to and from other libraries' parameter names, and StableHLO programs.

`vit_names` and `marian_names` hold the conversion tables, which can be compared with the published code. `exchange`
reads and writes weight files, `adopt` initializes another model from them, `stablehlo` exports the forward computation.
"""
