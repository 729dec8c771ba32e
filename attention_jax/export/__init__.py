"""Export of a run's forward computation as StableHLO (`stablehlo`), with scripts that prepare its inputs without this
package (`prepare_text`, `prepare_image`); `text_steps` describes tokenizers to them."""
