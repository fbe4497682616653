"""The work that `reknit demo` refits: a small language model that really trains, and the story told with it.

`options` owns what may be asked for, `story` what happens, `verdict` what follows from it, `view` the screen. `corpus`
owns the text, `model` the network, `workload` what a trainer and a shard do with them and how they prove it.
`cluster` and `actors` know Ray, `signals` how a run is ended from outside.
"""
