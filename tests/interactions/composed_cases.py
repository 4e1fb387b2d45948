"""The composed blocks and the heads as cases of ``test_block_contract.py``, with FLOPs counted by hand."""

from __future__ import annotations

import composed_references as reference
from block_case import BlockCase
from torch import Tensor

from ziggurat.interactions.bilinear_fusion import BilinearFusion
from ziggurat.interactions.block import Block
from ziggurat.interactions.compressed_interaction import CompressedInteraction
from ziggurat.interactions.field_blocks.attentive_compression import AttentiveCompression
from ziggurat.interactions.field_blocks.convolution import Convolution
from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.interactions.field_blocks.factorization_machine_block import FactorizationMachineBlock
from ziggurat.interactions.field_blocks.field_products import FieldProducts
from ziggurat.interactions.field_blocks.flat_mlp import FlatMLP
from ziggurat.interactions.field_blocks.gram_cross import GramCross
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.field_blocks.mask_block import MaskBlock, MaskedFields
from ziggurat.interactions.field_blocks.pairs_block import PairsBlock
from ziggurat.interactions.field_blocks.self_attention import SelfAttention
from ziggurat.interactions.field_blocks.stack import LayerStack
from ziggurat.interactions.gate import Gate
from ziggurat.interactions.heads.mmoe import MMoE
from ziggurat.interactions.heads.ple import PLE
from ziggurat.interactions.heads.shared_bottom import SharedBottom
from ziggurat.interactions.interacting import Interacting
from ziggurat.interactions.mlp import MLP

ONE = MLP.Config(hidden=(5,))
NONE = MLP.Config(hidden=())
FM = FactorizationMachineBlock.Config(outputs=2, rank=2, mlp=ONE)
PLAIN_FM = FactorizationMachineBlock.Config(outputs=3, rank=None, mlp=ONE)
LINEAR = LinearCompression.Config(outputs=2)
BLOCKS_OF_TWO = (
    FM,
    LINEAR,
    PairsBlock.Config(outputs=2, mlp=ONE),
    GramCross.Config(outputs=2),
    SelfAttention.Config(outputs=2, heads=2, feed_forward=5),
    Convolution.Config(outputs=2, taps=3),
    MaskedFields.Config(outputs=2, aggregation=0.5),
    FlatMLP.Config(outputs=2, mlp=ONE),
)

# Of 3 fields and 4 dims, two fields out:
FM_FLOPS = 2 * (2 * 3 * 2 * 4) + 2 * (6 * 5 + 5 * 8)
LINEAR_FLOPS = 2 * 3 * 2 * 4
PAIRS_FLOPS = 2 * 9 * 4 + 2 * (3 * 5 + 5 * 8)
GRAM_FLOPS = 2 * 4 * 4 * (3 + 2)
ATTENTION_FLOPS = 2 * 3 * 4 * (4 * 4 + 2 * 5) + 4 * 9 * 4 + 2 * 3 * 4
CONVOLUTION_FLOPS = 2 * 2 * 3 * 3 * 4
MASK_FLOPS = 2 * (12 * 6 + 6 * 12 + 12 * 8) + 12
FLAT_FLOPS = 2 * (12 * 5 + 5 * 8)
ALL_FLOPS = (
    FM_FLOPS
    + LINEAR_FLOPS
    + PAIRS_FLOPS
    + GRAM_FLOPS
    + (ATTENTION_FLOPS + LINEAR_FLOPS)
    + CONVOLUTION_FLOPS
    + MASK_FLOPS
    + FLAT_FLOPS
)
MMOE = MMoE.Config(experts=3, expert=ONE, tower=NONE)
PLE_ONE = PLE.Config(layers=1, shared_experts=1, task_experts=2, expert=ONE, tower=NONE)
PLE_TWO = PLE.Config(layers=2, shared_experts=2, task_experts=1, expert=ONE, tower=MLP.Config(hidden=(3,)))


class Joined(Block):
    """A fusion of two streams as a block with one input: the first stream's numbers, then the second's."""

    def __init__(self, first: int, second: int, outputs: int, heads: int) -> None:
        super().__init__()
        self.cut = [first, second]
        self.out_features = outputs
        self.fusion = BilinearFusion(first, second, outputs, heads)

    def forward(self, inputs_BN: Tensor) -> Tensor:
        return self.fusion(*inputs_BN.split(self.cut, dim=1))

    def matmul_flops(self) -> int:
        return self.fusion.matmul_flops()

    def elementwise_flops(self) -> int:
        return self.fusion.elementwise_flops()


def ensemble(blocks: tuple[object, ...], combine: str = "concat", shortcut: bool = True) -> Ensemble.Config:
    return Ensemble.Config.model_validate({"blocks": blocks, "combine": combine, "shortcut": shortcut})


CASES = [
    BlockCase(
        "linear-compression",
        (3, 4),
        lambda: LinearCompression(3, 4, 2),
        reference.by_row(reference.mixture),
        (2, 4),
        LINEAR_FLOPS,
    ),
    BlockCase(
        "attentive-compression",
        (3, 4),
        lambda: AttentiveCompression(3, 4, 2, ONE),
        reference.by_row(reference.attentive),
        (3, 2),
        LINEAR_FLOPS + 2 * (8 * 5 + 5 * 6),
    ),
    BlockCase(
        "field-products",
        (3, 4),
        lambda: FieldProducts(3, 4),
        reference.by_row(reference.products),
        (3, 3),
        2 * 3 * 3 * 4,
    ),
    BlockCase(
        "field-products-low-rank",
        (5, 4),
        lambda: FieldProducts(5, 4, 2),
        reference.by_row(reference.products),
        (5, 2),
        2 * (2 * 5 * 2 * 4),
    ),
    BlockCase(
        "field-products-attentive",
        (3, 4),
        lambda: FieldProducts(3, 4, 2, ONE),
        reference.by_row(reference.products),
        (3, 2),
        2 * (2 * 3 * 2 * 4) + LINEAR_FLOPS + 2 * (8 * 5 + 5 * 6),
    ),
    BlockCase(
        "fm-block",
        (3, 4),
        lambda: FactorizationMachineBlock(FM, 3, 4),
        reference.by_row(reference.fm_block),
        (2, 4),
        FM_FLOPS,
    ),
    BlockCase(
        "fm-block-full",
        (3, 4),
        lambda: FactorizationMachineBlock(PLAIN_FM, 3, 4),
        reference.by_row(reference.fm_block),
        (3, 4),
        2 * 9 * 4 + 2 * (9 * 5 + 5 * 12),
    ),
    BlockCase(
        "pairs-block",
        (3, 4),
        lambda: PairsBlock(PairsBlock.Config(outputs=2, mlp=ONE), 3, 4),
        reference.by_row(reference.pairs_block),
        (2, 4),
        PAIRS_FLOPS,
    ),
    BlockCase(
        "flat-mlp",
        (3, 4),
        lambda: FlatMLP(FlatMLP.Config(outputs=2, mlp=ONE), 3, 4),
        reference.by_row(reference.flat_mlp),
        (2, 4),
        FLAT_FLOPS,
    ),
    BlockCase(
        "gram-cross",
        (3, 4),
        lambda: GramCross(GramCross.Config(outputs=2), 3, 4),
        reference.by_row(reference.gram_cross),
        (2, 4),
        GRAM_FLOPS,
    ),
    BlockCase(
        "convolution",
        (3, 4),
        lambda: Convolution(Convolution.Config(outputs=2, taps=3), 3, 4),
        reference.by_row(reference.convolution),
        (2, 4),
        CONVOLUTION_FLOPS,
    ),
    BlockCase(
        "self-attention",
        (3, 4),
        lambda: SelfAttention(SelfAttention.Config(heads=2, feed_forward=5), 3, 4),
        reference.by_row(reference.self_attention),
        (3, 4),
        ATTENTION_FLOPS,
    ),
    BlockCase(
        "self-attention-bare",
        (3, 4),
        lambda: SelfAttention(SelfAttention.Config(heads=1, feed_forward=0, outputs=2), 3, 4),
        reference.by_row(reference.self_attention),
        (2, 4),
        2 * 3 * 4 * 16 + 4 * 9 * 4 + 12 + LINEAR_FLOPS,
    ),
    BlockCase(
        "interacting",
        (3, 4),
        lambda: Interacting(3, 4, layers=2, heads=2, head_dim=3, scale=False),
        reference.by_row(reference.interacting),
        (3, 6),
        2 * 3 * (4 * 24 + 6 * 24) + 2 * (4 * 9 * 6) + 2 * 18,
    ),
    BlockCase(
        "mask-block",
        (7,),
        lambda: MaskBlock(7, 7, 4, 2.0),
        reference.by_row(reference.mask_block),
        (4,),
        2 * (7 * 14 + 14 * 7 + 7 * 4) + 7,
    ),
    BlockCase(
        "masked-fields",
        (3, 4),
        lambda: MaskedFields(MaskedFields.Config(outputs=2, aggregation=0.5), 3, 4),
        reference.by_row(reference.masked_fields),
        (2, 4),
        MASK_FLOPS,
    ),
    BlockCase("gate", (6,), lambda: Gate(6, 6, ONE), reference.by_row(reference.gate), (6,), 2 * (6 * 5 + 5 * 6) + 12),
    BlockCase(
        "compressed-interaction",
        (3, 4),
        lambda: CompressedInteraction(3, 4, (2, 5)),
        reference.by_row(reference.compressed_interaction),
        (7, 4),
        4 * (2 * (9 * 2 + 6 * 5) + (9 + 6)),
    ),
    BlockCase(
        "bilinear-fusion",
        (9,),
        lambda: Joined(4, 5, 2, heads=1),
        reference.by_row(reference.joined),
        (2,),
        2 * (9 * 2 + 4 * 5 * 2) + (2 * 5 + 1) * 2,
    ),
    BlockCase(
        "bilinear-fusion-heads",
        (10,),
        lambda: Joined(4, 6, 3, heads=2),
        reference.by_row(reference.joined),
        (3,),
        2 * (10 * 3 + 2 * (2 * 3 * 3)) + (2 * 6 + 1) * 3,
    ),
    BlockCase(
        "ensemble-concat",
        (3, 4),
        lambda: Ensemble(ensemble((FM, LINEAR)), 3, 4),
        reference.by_row(reference.ensemble),
        (4, 4),
        FM_FLOPS + LINEAR_FLOPS + 2 * 3 * 4 * 4 + 16,
    ),
    BlockCase(
        "ensemble-identity",
        (3, 4),
        lambda: Ensemble(ensemble((PLAIN_FM,)), 3, 4),
        reference.by_row(reference.ensemble),
        (3, 4),
        2 * 9 * 4 + 2 * (9 * 5 + 5 * 12) + 12,
    ),
    BlockCase(
        "ensemble-sum-of-all",
        (3, 4),
        lambda: Ensemble(ensemble(BLOCKS_OF_TWO, "sum", shortcut=False), 3, 4),
        reference.by_row(reference.ensemble),
        (2, 4),
        ALL_FLOPS + 7 * 8,
    ),
    BlockCase(
        "ensemble-weighted",
        (3, 4),
        lambda: Ensemble(ensemble((FM, LINEAR), "weighted"), 3, 4),
        reference.by_row(reference.ensemble),
        (2, 4),
        FM_FLOPS + LINEAR_FLOPS + 3 * 8 + 2 * 3 * 2 * 4 + 8,
    ),
    BlockCase(
        "stack",
        (3, 4),
        lambda: LayerStack([ensemble((FM, LINEAR))] * 2, 3, 4),
        reference.by_row(reference.stack),
        (4, 4),
        (FM_FLOPS + LINEAR_FLOPS + 2 * 3 * 4 * 4 + 16)
        + (2 * (2 * 4 * 2 * 4) + 2 * (8 * 5 + 5 * 8) + 2 * 4 * 2 * 4 + 16),
    ),
    BlockCase(
        "shared-bottom",
        (6,),
        lambda: SharedBottom(SharedBottom.Config(bottom=ONE, tower=MLP.Config(hidden=(3,))), 6, 2),
        reference.by_row(reference.shared_bottom),
        (2,),
        2 * (6 * 5 + 2 * (5 * 3 + 3)),
    ),
    BlockCase(
        "mmoe",
        (6,),
        lambda: MMoE(MMOE, 6, 2),
        reference.by_row(reference.mmoe),
        (2,),
        2 * (3 * 6 * 5 + 2 * 6 * 3 + 2 * 5) + 2 * 5 * 5,
    ),
    BlockCase(
        "ple-one-layer",
        (6,),
        lambda: PLE(PLE_ONE, 6, 2),
        reference.by_row(reference.ple),
        (2,),
        2 * (5 * 6 * 5 + 2 * 6 * 3 + 2 * 5) + 2 * 5 * 5,
    ),
    BlockCase(
        "ple-two-layers",
        (6,),
        lambda: PLE(PLE_TWO, 6, 2),
        reference.by_row(reference.ple),
        (2,),
        2 * (4 * 6 * 5 + 2 * 6 * 3 + 6 * 4)
        + (2 * 5 + 7) * 5
        + 2 * (4 * 5 * 5 + 2 * 5 * 3 + 2 * (5 * 3 + 3))
        + 2 * 5 * 5,
    ),
]
