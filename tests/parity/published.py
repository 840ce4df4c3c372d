"""Parameter counts that others published, for the same model on the same vocabulary."""

from typing import Any, NamedTuple

from fieldwise import (
    AFM,
    DCN,
    FFM,
    FM,
    HOFM,
    LR,
    NFM,
    AutoInt,
    AutoIntPlus,
    DCNv2,
    DeepCrossing,
    DeepFM,
    FiBiNET,
    FinalMLP,
    FinalNet,
    FwFM,
    WideDeep,
    XDeepFM,
)
from fieldwise.models import ModelSettings

__all__ = ["PUBLISHED", "Published"]


class Published(NamedTuple):
    """One published count.

    Args:
        settings: the model of the run.
        sizes: rows of each field in the embedding table, padding and unknown included. Where only
            the sum is published, it stands at the first field.
        count: numbers that training changes.
        source: the run that printed it.
        redundant: numbers of that run which do nothing there and are not here.
    """

    settings: ModelSettings
    sizes: list[int]
    count: int
    source: str
    redundant: int = 0


# Fields of the public sets; a numeric field is one row, as it has one vector.
FRAPPE = [5_389, *[0] * 9]
MOVIELENS_TAG = [90_239, *[0] * 2]
CRITEO = [2_086_316, *[0] * 38]
AVAZU = [1_298_599, *[0] * 21]
KKBOX = [92_247, *[0] * 12]  # follows from the count of Wide & Deep there

BARS = "BARS (github.com/reczoo/BARS), ranking/ctr/"
EMBEDDING = {"embedding_dim": 10}
FUXICTR = EMBEDDING | {"variant": "fuxictr", "heads": 4, "attention_dim": 128}
NORMED = FUXICTR | {"norm": "before_relu", "scale": True}
DEEP = {"hidden": (400, 400, 400), "batch_norm": True}
PLAIN_DEEP = EMBEDDING | {"hidden": (400, 400, 400), "batch_norm": False}
FELV = EMBEDDING | {"linear": "feature_vectors"}
PARALLEL = EMBEDDING | {"structure": "parallel"}
XDEEP = {"variant": "fuxictr", "hidden": (400, 400, 400)}

# fmt: off
ROWS: list[tuple[Any, ...]] = [
    ("afm", "frappe", AFM(**EMBEDDING, variant="fuxictr", attention_dim=128), FRAPPE, 60_826, "AFM/AFM_frappe_x1"),
    ("afm", "movielens-tag", AFM(**EMBEDDING, variant="fuxictr", attention_dim=16),
     MOVIELENS_TAG, 992_832, "AFM/AFM_movielenslatest_x1"),
    ("afm", "criteo", AFM(**EMBEDDING, variant="fuxictr", attention_dim=32), CRITEO, 22_949_871, "AFM/AFM_criteo_x1"),
    ("autoint", "frappe", AutoInt(layers=6, **FUXICTR), FRAPPE, 306_051, "AutoInt/AutoInt_frappe_x1"),
    ("autoint", "movielens-tag", AutoInt(layers=2, wide=True, **NORMED),
     MOVIELENS_TAG, 1_047_798, "AutoInt/AutoInt_movielenslatest_x1"),
    ("autoint", "criteo", AutoInt(layers=3, wide=True, **NORMED | {"attention_dim": 256}),
     CRITEO, 23_364_453, "AutoInt/AutoInt_criteo_x1"),
    ("autoint+", "frappe", AutoIntPlus(layers=5, **NORMED, **DEEP), FRAPPE, 622_180, "AutoInt/AutoInt+_frappe_x1"),
    ("autoint+", "movielens-tag", AutoIntPlus(layers=2, wide=True, **NORMED, **DEEP),
     MOVIELENS_TAG, 1_383_799, "AutoInt/AutoInt+_movielenslatest_x1"),
    ("autoint+", "criteo", AutoIntPlus(layers=3, wide=True, norm="before_relu", **FUXICTR | {"heads": 2,
     "attention_dim": 256}, **DEEP),
     CRITEO, 23_844_454, "AutoInt/AutoInt+_criteo_x1"),
    ("lr", "frappe", LR(), FRAPPE, 5_390, "LR/LR_frappe_x1"),
    ("lr", "movielens-tag", LR(), MOVIELENS_TAG, 90_240, "LR/LR_movielenslatest_x1"),
    ("lr", "criteo", LR(), CRITEO, 2_086_317, "LR/LR_criteo_x1"),
    ("fm", "frappe", FM(**EMBEDDING), FRAPPE, 59_280, "FM/FM_frappe_x1"),
    ("fm", "movielens-tag", FM(**EMBEDDING), MOVIELENS_TAG, 992_630, "FM/FM_movielenslatest_x1"),
    ("fm", "criteo", FM(**EMBEDDING), CRITEO, 22_949_477, "FM/FM_criteo_x1"),
    ("hofm", "frappe", HOFM(**EMBEDDING), FRAPPE, 113_170, "HOFM/HOFM_frappe_x1"),
    ("hofm", "movielens-tag", HOFM(**EMBEDDING, sharing="plain"),
     MOVIELENS_TAG, 992_630, "HOFM/HOFM_movielenslatest_x1"),
    ("hofm", "criteo", HOFM(**EMBEDDING), CRITEO, 43_812_637, "HOFM/HOFM_criteo_x1"),
    ("ffm", "frappe", FFM(**EMBEDDING, first_order=True), FRAPPE, 490_400, "FFM/FFM_frappe_x1"),
    ("ffm", "movielens-tag", FFM(**EMBEDDING, first_order=True),
     MOVIELENS_TAG, 1_895_020, "FFM/FFM_movielenslatest_x1"),
    ("ffm", "criteo", FFM(embedding_dim=5, first_order=True), CRITEO, 398_486_357, "FFM/FFM_criteo_x1"),
    ("fwfm", "frappe", FwFM(**FELV), FRAPPE, 107_826, "FwFM/FwFM_frappe_x1"),
    ("fwfm", "movielens-tag", FwFM(**FELV), MOVIELENS_TAG, 1_804_784, "FwFM/FwFM_movielenslatest_x1"),
    ("fwfm", "criteo", FwFM(**FELV), CRITEO, 41_727_062, "FwFM/FwFM_criteo_x1"),
    ("nfm", "frappe", NFM(**PLAIN_DEEP), FRAPPE, 384_880, "NFM/NFM_frappe_x1"),
    ("nfm", "movielens-tag", NFM(**PLAIN_DEEP), MOVIELENS_TAG, 1_318_230, "NFM/NFM_movielenslatest_x1"),
    ("nfm", "criteo", NFM(**PLAIN_DEEP), CRITEO, 23_275_077, "NFM/NFM_criteo_x1"),
    ("widedeep", "frappe", WideDeep(**EMBEDDING, **DEEP), FRAPPE, 423_280, "WideDeep/WideDeep_frappe_x1"),
    ("widedeep", "movielens-tag", WideDeep(**EMBEDDING, **DEEP),
     MOVIELENS_TAG, 1_328_630, "WideDeep/WideDeep_movielenslatest_x1"),
    ("widedeep", "criteo", WideDeep(**EMBEDDING, **DEEP), CRITEO, 23_429_477, "WideDeep/WideDeep_criteo_x1"),
    ("deepcrossing", "kkbox", DeepCrossing(embedding_dim=128, hidden=(1_000,) * 4, embedding_relu=False,
     unit_dropout=0.3),
     KKBOX, 25_131_937, "DeepCrossing/DeepCrossing_kkbox_x1"),
    ("deepfm", "frappe", DeepFM(**EMBEDDING, **DEEP), FRAPPE, 423_280, "DeepFM/DeepFM_frappe_x1"),
    ("deepfm", "movielens-tag", DeepFM(**EMBEDDING, **DEEP),
     MOVIELENS_TAG, 1_328_630, "DeepFM/DeepFM_movielenslatest_x1"),
    ("deepfm", "criteo", DeepFM(**EMBEDDING, **DEEP), CRITEO, 23_429_477, "DeepFM/DeepFM_criteo_x1"),
    ("dcn", "frappe", DCN(**EMBEDDING, layers=3, **DEEP), FRAPPE, 418_591, "DCN/DCN_frappe_x1"),
    ("dcn", "movielens-tag", DCN(**EMBEDDING, layers=4, **DEEP),
     MOVIELENS_TAG, 1_238_661, "DCN/DCN_movielenslatest_x1"),
    ("dcn", "criteo", DCN(layers=3, **PLAIN_DEEP), CRITEO, 21_343_491, "DCN/DCN_criteo_x1"),
    ("dcn", "frappe, cross alone", DCN(**EMBEDDING, layers=6, hidden=()),
     FRAPPE, 55_191, "CrossNet/CrossNet_frappe_x1"),
    ("dcnv2", "frappe", DCNv2(**PARALLEL, layers=4, **DEEP), FRAPPE, 458_391, "DCNv2/DCNv2_frappe_x1"),
    ("dcnv2", "movielens-tag", DCNv2(**PARALLEL, layers=5, **DEEP),
     MOVIELENS_TAG, 1_243_071, "DCNv2/DCNv2_movielenslatest_x1"),
    ("dcnv2", "criteo", DCNv2(**PARALLEL, layers=3, hidden=(500, 500, 500)),
     CRITEO, 22_018_021, "DCNv2/DCNv2_criteo_x1"),
    ("dcnv2", "frappe, cross alone", DCNv2(**PARALLEL, layers=4, hidden=()),
     FRAPPE, 94_391, "DCNv2/CrossNetv2_frappe_x1"),
    ("xdeepfm", "frappe", XDeepFM(**XDEEP, cin_layers=(64,), batch_norm=True),
     FRAPPE, 429_809, "xDeepFM/xDeepFM_frappe_x1"),
    ("xdeepfm", "movielens-tag", XDeepFM(**XDEEP, cin_layers=(64, 64, 64)),
     MOVIELENS_TAG, 1_351_767, "xDeepFM/xDeepFM_movielenslatest_x1"),
    ("xdeepfm", "criteo", XDeepFM(**XDEEP, cin_layers=(16, 16)), CRITEO, 23_461_462, "xDeepFM/xDeepFM_criteo_x1"),
    ("xdeepfm", "frappe, CIN alone", XDeepFM(variant="fuxictr", hidden=(), cin_layers=(64, 64, 64)),
     FRAPPE, 147_984, "xDeepFM/CIN_frappe_x1"),
    ("fibinet", "frappe", FiBiNET(shared_bilinear=True, bilinear="all", reduction_ratio=2, batch_norm=True),
     FRAPPE, 743_480, "FiBiNET/FiBiNET_frappe_x1"),
    ("fibinet", "movielens-tag", FiBiNET(shared_bilinear=True, bilinear="all", reduction_ratio=0.3, batch_norm=True),
     MOVIELENS_TAG, 1_340_790, "FiBiNET/FiBiNET_movielenslatest_x1"),
    ("fibinet", "criteo", FiBiNET(shared_bilinear=True, bilinear="interaction", reduction_ratio=12),
     CRITEO, 29_273_411, "FiBiNET/FiBiNET_criteo_x1"),
    ("finalnet", "frappe", FinalNet(block1_hidden=(400, 400), block2_hidden=(400,)),
     [5_399, *[0] * 9], 338_502, "FinalNet/FinalNet_2B_frappe_x1"),
    ("finalnet", "movielens-tag", FinalNet(block1_hidden=(400, 400), block2_hidden=(500,)),
     [90_242, *[0] * 2], 1_106_234, "FinalNet/FinalNet_2B_movielenslatest_x1"),
    ("finalnet", "criteo", FinalNet(block1_hidden=(400, 400), block2_hidden=(400, 400)),
     [2_086_342, *[0] * 38], 21_658_582, "FinalNet/FinalNet_2B_criteo_x1"),
    ("lr", "avazu", LR(), AVAZU, 1_298_600, "LR/LR_avazu_x1"),
    ("fwfm", "avazu", FwFM(**FELV), AVAZU, 25_972_212, "FwFM/FwFM_avazu_x1"),
    ("nfm", "avazu", NFM(**PLAIN_DEEP), AVAZU, 14_610_190, "NFM/NFM_avazu_x1"),
    ("nfm", "kkbox", NFM(embedding_dim=128, hidden=(1_000, 1_000, 1_000), batch_norm=False),
     KKBOX, 14_031_864, "NFM/NFM_kkbox_x1"),
    ("widedeep", "avazu", WideDeep(**EMBEDDING, **DEEP), AVAZU, 14_696_590, "WideDeep/WideDeep_avazu_x1"),
    ("widedeep", "kkbox", WideDeep(embedding_dim=128, hidden=(1_000, 1_000, 1_000)),
     KKBOX, 15_567_864, "WideDeep/WideDeep_kkbox_x1"),
    ("deepfm", "avazu", DeepFM(**EMBEDDING, **DEEP), AVAZU, 14_696_590, "DeepFM/DeepFM_avazu_x1"),
    ("dcn", "movielens-tag, cross alone", DCN(**EMBEDDING, layers=7, hidden=()),
     MOVIELENS_TAG, 902_841, "CrossNet/CrossNet_movielenslatest_x1"),
    ("dcn", "criteo, cross alone", DCN(**EMBEDDING, layers=12, hidden=()),
     CRITEO, 20_872_911, "CrossNet/CrossNet_criteo_x1"),
    ("dcnv2", "movielens-tag, cross alone", DCNv2(**PARALLEL, layers=8, hidden=()),
     MOVIELENS_TAG, 909_861, "DCNv2/CrossNetv2_movielenslatest_x1"),
    ("dcnv2", "criteo, cross alone", DCNv2(**PARALLEL, layers=5, hidden=()),
     CRITEO, 21_626_001, "DCNv2/CrossNetv2_criteo_x1"),
    ("xdeepfm", "movielens-tag, CIN alone", XDeepFM(variant="fuxictr", hidden=(), cin_layers=(32,) * 4),
     MOVIELENS_TAG, 1_002_390, "xDeepFM/CIN_movielenslatest_x1"),
    ("xdeepfm", "criteo, CIN alone", XDeepFM(variant="fuxictr", hidden=(), cin_layers=(32,) * 5),
     CRITEO, 23_158_213, "xDeepFM/CIN_criteo_x1"),
    ("finalnet", "frappe, 1B", FinalNet(blocks="1B", block1_hidden=(400, 400), field_gate=False),
     [5_399, *[0] * 9], 256_791, "FinalNet/FinalNet_1B_frappe_x1"),
    ("finalnet", "movielens-tag, 1B", FinalNet(blocks="1B", block1_hidden=(400,), field_gate=False),
     [90_242, *[0] * 2], 916_021, "FinalNet/FinalNet_1B_movielenslatest_x1"),
    # The authors' fusion has two biases, of which only the sum counts.
    ("finalmlp", "frappe", FinalMLP(stream1_hidden=(400,), stream2_hidden=(100,), stream1_gate_fields=("field_0",),
     stream2_gate_fields=("field_1",), gate_hidden=(400,), heads=5, batch_norm=True),
     [956, 4_084, 9, 9, 4, 5, 4, 11, 82, 235], 253_392, "FinalMLP/FinalMLP_frappe_x1", 1),
    ("finalmlp", "movielens-tag", FinalMLP(stream1_hidden=(400,), stream2_hidden=(800,), gate_hidden=(800,), heads=10,
     batch_norm=True),
     [16_977, 23_606, 49_659], 1_040_902, "FinalMLP/FinalMLP_movielenslatest_x1", 1),
    # The log's vocabularies sum to one row less than its count needs: the total is the count's own.
    ("finalmlp", "criteo", FinalMLP(stream1_hidden=(400, 400, 400), stream2_hidden=(1_000,),
     stream1_gate_fields=tuple(f"field_{f}" for f in range(13)), stream2_gate_fields=("field_18",),
     gate_hidden=(800,), heads=200, batch_norm=True),
     [*[1] * 13, *[0] * 5, 23, *[0] * 19, 2_086_342 - 13 - 23], 22_478_162, "FinalMLP/FinalMLP_criteo_x1", 1),
]
# fmt: on

PUBLISHED: dict[tuple[str, str], Published] = {
    (model, data): Published(settings, sizes, count, BARS + run, *redundant)
    for model, data, settings, sizes, count, run, *redundant in ROWS
}
