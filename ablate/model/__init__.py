"""The decoder, one file an axis.

Shapes stand in names: x_BTD is a tensor of B sequences, T tokens, D features.

    B  sequences in a batch     T  tokens in a sequence     D  model width        V  vocabulary
    N  query heads              K  key and value heads      H  width of a head    F  width of the feed-forward layer
"""
