"""All benchmarks by name."""

from bench.benchmark import Benchmark
from bench.micro.autoshard import AUTOSHARD
from bench.micro.balance import BALANCE
from bench.micro.checkpoint_stall import CHECKPOINT_STALL
from bench.micro.cost_network import COST_NETWORK
from bench.micro.dense_speed import DENSE_SPEED
from bench.micro.loader import LOADER
from bench.micro.recshard import RECSHARD
from bench.micro.search_prediction import SEARCH_PREDICTION
from bench.micro.seerl_clusters import SEERL_CLUSTERS
from bench.micro.seerl_placement import SEERL_PLACEMENT
from bench.micro.shampoo_step import SHAMPOO_STEP
from bench.quality.catalogue import (
    DHEN_ENSEMBLE,
    DHEN_PLANTED,
    QUALITY_CENSUS,
    QUALITY_FRAPPE,
    QUALITY_MOVIELENS,
    QUALITY_MOVIELENS_RATINGS,
    WUKONG_ABLATION,
)
from bench.quality.checkpoint_bytes import CHECKPOINT_BYTES
from bench.quality.dmt_quality import DMT_QUALITY
from bench.quality.dnas import DNAS
from bench.quality.learned_hash import LEARNED_HASH
from bench.quality.out_of_the_box import OUT_OF_THE_BOX, SEARCHED
from bench.quality.p3s import P3S
from bench.quality.seerl import SEERL
from bench.quality.shampoo_convergence import SHAMPOO_CONVERGENCE
from bench.serving.serving_hostile import SERVING_HOSTILE
from bench.serving.serving_peers import SERVING_PEERS
from bench.serving.serving_power import SERVING_POWER
from bench.serving.serving_sdm import SERVING_SDM
from bench.serving.serving_soak import SERVING_SOAK
from bench.system.checkpoint_crash import CHECKPOINT_CRASH
from bench.system.checksums import CHECKSUMS
from bench.system.cli_start import CLI_START
from bench.system.damage import DAMAGE
from bench.system.dmt import DMT
from bench.system.flexshard import FLEXSHARD
from bench.system.fuzz import FUZZ
from bench.system.hostile import HOSTILE
from bench.system.ingestion import INGESTION
from bench.system.lab import LAB_COLLECTIVES, PIPELINE_OVERLAP
from bench.system.model_swaps import MODEL_SWAPS
from bench.system.parity import RANK_PARITY
from bench.system.predict_speed import PREDICT_SPEED
from bench.system.prepare import PREPARE
from bench.system.quantised import QUANTISED_COMMS
from bench.system.row_store import ROW_STORE
from bench.system.scaling import SCALING
from bench.system.scaling_law import SCALING_LAW
from bench.system.shampoo_state import SHAMPOO_STATE
from bench.system.soak import SOAK
from bench.system.throughput import THROUGHPUT
from bench.system.tiered_devices import TIERED_DEVICES
from bench.system.tiered_training import TIERED_TRAINING

_ALL = (
    THROUGHPUT,
    DENSE_SPEED,
    SHAMPOO_STEP,
    SHAMPOO_STATE,
    SHAMPOO_CONVERGENCE,
    SCALING_LAW,
    LOADER,
    BALANCE,
    COST_NETWORK,
    AUTOSHARD,
    RECSHARD,
    SCALING,
    RANK_PARITY,
    LAB_COLLECTIVES,
    PIPELINE_OVERLAP,
    DMT,
    FLEXSHARD,
    QUANTISED_COMMS,
    ROW_STORE,
    TIERED_TRAINING,
    TIERED_DEVICES,
    SERVING_SDM,
    SERVING_POWER,
    CHECKPOINT_BYTES,
    CHECKPOINT_STALL,
    CHECKPOINT_CRASH,
    DAMAGE,
    CHECKSUMS,
    HOSTILE,
    FUZZ,
    MODEL_SWAPS,
    INGESTION,
    SOAK,
    PREPARE,
    PREDICT_SPEED,
    SERVING_PEERS,
    SERVING_HOSTILE,
    SERVING_SOAK,
    CLI_START,
    QUALITY_FRAPPE,
    QUALITY_MOVIELENS,
    QUALITY_MOVIELENS_RATINGS,
    QUALITY_CENSUS,
    OUT_OF_THE_BOX,
    SEARCHED,
    WUKONG_ABLATION,
    DHEN_ENSEMBLE,
    DHEN_PLANTED,
    DMT_QUALITY,
    DNAS,
    SEARCH_PREDICTION,
    LEARNED_HASH,
    SEERL,
    SEERL_PLACEMENT,
    SEERL_CLUSTERS,
    P3S,
)

BENCHMARKS: dict[str, Benchmark] = {each.name: each for each in _ALL}
