from torch import nn

from funcpipe.model.caveats import caveats
from funcpipe.model.chain import chain_of


def test_batch_normalisation_is_pointed_out_by_layer_wherever_it_is() -> None:
    block = nn.ModuleList([nn.Linear(2, 2), nn.BatchNorm1d(2)])
    (text,) = caveats(chain_of(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), block)))
    assert "batch normalisation in layer 1, 2:" in text
    assert "GroupNorm" in text


def test_other_layers_need_no_words() -> None:
    assert caveats(chain_of(nn.Sequential(nn.Linear(2, 2), nn.GroupNorm(1, 2)))) == []
