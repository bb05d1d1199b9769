# SPDX-License-Identifier: MIT
# Made by scripts/make_python.pl from include/shoal-api.json: do not edit.
"""The declarations of libshoal, for ctypes."""

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_bool,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from typing import Any

VERSION = "0.1.0"
SONAME = "libshoal.so.0.1"
ANY_RANK = -3
FSDP_ALL_RANKS = -1
FSDP_ALL_UNITS = -1
GATHER_MAX_BUFFERS = 8
MAX_DIMS = 8
MAX_MODULE_NAME = 255
MAX_SECTION_NAME = 63
MESH_MAX_DIMS = 8
MESH_MAX_NAME = 59
NO_RANK = -2
OP_WORKSPACE_ALIGNMENT = 64
SECTION_MODEL = "model"
SECTION_OPTIMIZER = "optimizer"


class ArgKind(IntEnum):
    ARG_NONE = 0
    ARG_NODE = 1
    ARG_INT = 2
    ARG_RANK = 3
    ARG_FLOAT = 4
    ARG_BOOL = 5
    ARG_DTYPE = 6
    ARG_STRING = 7
    ARG_GROUP = 8
    ARG_LIST = 9


class CheckpointFormat(IntEnum):
    CHECKPOINT_PIECES = 0
    CHECKPOINT_WHOLE = 1


class CollectiveKind(IntEnum):
    KIND_BARRIER = 1
    KIND_BROADCAST = 2
    KIND_ALL_REDUCE = 3
    KIND_REDUCE = 4
    KIND_ALL_GATHER = 5
    KIND_ALL_GATHER_V = 6
    KIND_REDUCE_SCATTER = 7
    KIND_REDUCE_SCATTER_V = 8
    KIND_ALL_TO_ALL = 9
    KIND_ALL_TO_ALL_V = 10
    KIND_GATHER = 11
    KIND_GATHER_V = 12
    KIND_SCATTER = 13
    KIND_SCATTER_V = 14
    KIND_COUNT = 15


class Device(IntEnum):
    CPU = 0
    META = 1


class Direction(IntEnum):
    SEND = 0
    RECV = 1


class Dtype(IntEnum):
    F64 = 1
    F32 = 2
    F16 = 3
    BF16 = 4
    I8 = 5
    I16 = 6
    I32 = 7
    I64 = 8
    U8 = 9
    U16 = 10
    U32 = 11
    U64 = 12
    BOOL = 13
    C64 = 14
    C128 = 15
    F8_E4M3FN = 16
    F8_E5M2 = 17


class HookPlace(IntEnum):
    HOOK_IN_ORDER = 0
    HOOK_FIRST = 1
    HOOK_LAST = 2


class LogLevel(IntEnum):
    LOG_ERROR = 1
    LOG_WARN = 2
    LOG_INFO = 3
    LOG_DEBUG = 4


class NodeKind(IntEnum):
    NODE_PLACEHOLDER = 0
    NODE_CONSTANT = 1
    NODE_CALL = 2
    NODE_OUTPUT = 3


class Reach(IntEnum):
    REACH_CALL = 0
    REACH_OP = 1
    REACH_GROUP = 2
    REACH_PROCESS = 3


class ReduceOp(IntEnum):
    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8


class Reshard(IntEnum):
    RESHARD_DEFAULT = 0
    RESHARD_ALWAYS = 1
    RESHARD_NEVER = 2
    RESHARD_PARTLY = 3


class Sharded(IntEnum):
    SHARDED_PARAMETERS = 0
    SHARDED_GRADIENTS = 1
    SHARDED_STATE = 2


class Status(IntEnum):
    OK = 0
    ERR_INVALID = -1
    ERR_NO_MEMORY = -2
    ERR_UNSUPPORTED = -3
    ERR_STATE = -4
    ERR_TIMEOUT = -5
    ERR_SYSTEM = -6
    ERR_CANCELLED = -7
    ERR_PEER = -8
    ERR_MISMATCH = -9
    ERR_INTERNAL = -10


class UpdateRule(IntEnum):
    UPDATE_SGD = 1
    UPDATE_ADAMW = 2


class ValueKind(IntEnum):
    VALUE_NONE = 0
    VALUE_TENSOR = 1
    VALUE_TENSORS = 2
    VALUE_INT = 3
    VALUE_INTS = 4
    VALUE_FLOAT = 5
    VALUE_BOOL = 6
    VALUE_DTYPE = 7
    VALUE_STRING = 8
    VALUE_GROUP = 9


class WalkNext(IntEnum):
    WALK_ON = 0
    WALK_SKIP = 1
    WALK_STOP = 2


shoal_all_reduce_hook = CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_void_p))
shoal_comm_block_filter = CFUNCTYPE(c_bool, c_void_p, c_void_p)
shoal_custom_allocate = CFUNCTYPE(c_void_p, c_void_p, c_size_t)
shoal_custom_release = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)
shoal_deleter = CFUNCTYPE(None, c_void_p, c_void_p)
shoal_done_function = CFUNCTYPE(None, c_void_p, c_int)
shoal_end_hook = CFUNCTYPE(c_int, c_void_p)
shoal_exchange = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t)
shoal_fsdp_accumulated_hook = CFUNCTYPE(c_int, c_void_p, c_int, c_void_p)
shoal_gradient_hook = CFUNCTYPE(c_void_p, c_void_p, c_void_p)
shoal_graph_write = CFUNCTYPE(c_int, c_void_p, c_char_p, c_size_t)
shoal_identity_hook = CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p), c_size_t)
shoal_items_loaded = CFUNCTYPE(c_int, c_void_p)
shoal_leaf_hook = CFUNCTYPE(c_int, c_void_p, c_void_p)
shoal_log_function = CFUNCTYPE(None, c_void_p, c_int, c_char_p)
shoal_lowering_function = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)
shoal_module_forward = CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_void_p), c_size_t)
shoal_module_function = CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_void_p))
shoal_module_hook_function = CFUNCTYPE(c_int, c_void_p, c_void_p)
shoal_module_visitor = CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_int))
shoal_node_filter = CFUNCTYPE(c_bool, c_void_p, c_void_p)
shoal_op_gradient = CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_void_p), POINTER(c_void_p))
shoal_op_kernel = CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_void_p), c_size_t)
shoal_op_meta = CFUNCTYPE(c_int, c_void_p, c_void_p)
shoal_op_workspace_bytes = CFUNCTYPE(c_size_t, c_void_p, c_void_p, POINTER(c_void_p), c_size_t)
shoal_pass_function = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_void_p)
shoal_placement = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p)
shoal_rank_function = CFUNCTYPE(c_int, c_void_p, c_void_p)
shoal_recompute_function = CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_void_p), c_size_t)
shoal_release_function = CFUNCTYPE(None, c_void_p)
shoal_step_function = CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_void_p), c_size_t)
shoal_write_function = CFUNCTYPE(c_int, c_void_p, c_char_p, c_size_t)


class shoal_allocator(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("context", c_void_p),
        ("allocate", c_void_p),
        ("release", c_void_p),
    ]


class shoal_arg_as_rank(Structure):
    _fields_ = [
        ("group", c_char_p),
        ("factor", c_int64),
        ("offset", c_int64),
    ]


class shoal_arg_as_list(Structure):
    _fields_ = [
        ("items", c_void_p),
        ("count", c_size_t),
    ]


class shoal_arg_as(Union):
    _fields_ = [
        ("node", c_void_p),
        ("integer", c_int64),
        ("real", c_double),
        ("boolean", c_bool),
        ("dtype", c_int),
        ("string", c_char_p),
        ("rank", shoal_arg_as_rank),
        ("list", shoal_arg_as_list),
    ]


class shoal_arg(Structure):
    _fields_ = [
        ("kind", c_int),
        ("as_", shoal_arg_as),
    ]


class shoal_backward_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("keeps_graph", c_bool),
    ]


class shoal_checkpoint_progress(Structure):
    _fields_ = [
        ("n_ranks", c_int64),
        ("batch", c_int64),
        ("n_accumulate", c_int64),
        ("sample", c_int64),
    ]


class shoal_checkpoint_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("step", c_int64),
        ("format", c_int),
        ("progress", shoal_checkpoint_progress),
        ("n_missing", c_size_t),
        ("n_unexpected", c_size_t),
        ("n_damaged", c_size_t),
    ]


class shoal_checkpoint_load_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("has_step", c_bool),
        ("step", c_int64),
        ("allows_missing", c_bool),
        ("allows_unexpected", c_bool),
        ("casts", c_bool),
        ("skips_sums", c_bool),
        ("section", c_char_p),
        ("progress", shoal_checkpoint_progress),
        ("allows_other_batch", c_bool),
        ("allows_none", c_bool),
        ("skips_damaged", c_bool),
    ]


class shoal_checkpoint_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("step", c_int64),
        ("format", c_int),
        ("replaces", c_bool),
        ("keep", c_int),
        ("max_file_bytes", c_size_t),
        ("progress", shoal_checkpoint_progress),
        ("fails_if_busy", c_bool),
    ]


class shoal_part(Structure):
    _fields_ = [
        ("send", c_void_p),
        ("recv", c_void_p),
        ("count", c_size_t),
        ("device", c_int),
    ]


class shoal_collective(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int),
        ("dtype", c_int),
        ("reduce", c_int),
        ("root", c_int),
        ("send", c_void_p),
        ("recv", c_void_p),
        ("count", c_size_t),
        ("counts", POINTER(c_size_t)),
        ("send_counts", POINTER(c_size_t)),
        ("recv_counts", POINTER(c_size_t)),
        ("send_blocks", POINTER(c_void_p)),
        ("recv_blocks", POINTER(c_void_p)),
        ("parts", POINTER(shoal_part)),
        ("n_parts", c_size_t),
        ("factor", c_double),
        ("timeout_s", c_double),
        ("on_done", shoal_done_function),
        ("release", shoal_release_function),
        ("context", c_void_p),
        ("device", c_int),
    ]


class shoal_comm_block(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("start", c_void_p),
        ("inputs", POINTER(c_void_p)),
        ("n_inputs", c_size_t),
        ("waits", POINTER(c_void_p)),
        ("n_waits", c_size_t),
        ("nodes", POINTER(c_void_p)),
        ("n_nodes", c_size_t),
        ("outputs", POINTER(c_void_p)),
        ("n_outputs", c_size_t),
        ("memory", c_void_p),
    ]


class shoal_pass_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("bucket_size_mb", c_double),
        ("disabled", c_char_p),
        ("dot_prefix", c_char_p),
        ("ddp_passes", c_char_p),
        ("comm_bucket_mb", c_double),
        ("machine", c_char_p),
    ]


class shoal_compile_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("passes", c_char_p),
        ("pass_options", POINTER(shoal_pass_options)),
        ("one_shot", c_bool),
        ("one_shot_max_bytes", c_size_t),
        ("no_reuse", c_bool),
        ("no_comm_buffers", c_bool),
        ("max_bytes", c_size_t),
        ("max_variants", c_size_t),
    ]


class shoal_plan_stats(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_steps", c_size_t),
        ("n_collectives", c_size_t),
        ("n_blocking", c_size_t),
        ("collective_bytes", c_uint64),
        ("pool_bytes", c_size_t),
        ("output_bytes", c_size_t),
        ("comm_bytes", c_size_t),
        ("window_bytes", c_size_t),
        ("peak_bytes", c_size_t),
        ("n_copied_out", c_size_t),
    ]


class shoal_compile_report(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_compiles", c_size_t),
        ("reason", c_char_p),
        ("n_nodes_before", c_size_t),
        ("n_nodes_after", c_size_t),
        ("n_collectives_before", c_size_t),
        ("n_collectives_after", c_size_t),
        ("n_buckets", c_size_t),
        ("capture_ns", c_uint64),
        ("passes_ns", c_uint64),
        ("lower_ns", c_uint64),
        ("plan", shoal_plan_stats),
        ("n_variants", c_size_t),
        ("n_evicted", c_size_t),
        ("variants_bytes", c_size_t),
        ("variants_window_bytes", c_size_t),
    ]


class shoal_cuda_grid(Structure):
    _fields_ = [
        ("blocks", c_uint32 * 3),
        ("threads", c_uint32 * 3),
        ("shared_bytes", c_uint32),
    ]


class shoal_cuda_usage(Structure):
    _fields_ = [
        ("now", c_uint64),
        ("most", c_uint64),
    ]


class shoal_cuda_memory(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tensors", shoal_cuda_usage),
        ("buffers", shoal_cuda_usage),
        ("reserved", shoal_cuda_usage),
        ("pinned", shoal_cuda_usage),
        ("free_bytes", c_uint64),
        ("total_bytes", c_uint64),
    ]


class shoal_custom_all_gather(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("allocate", shoal_custom_allocate),
        ("release", shoal_custom_release),
        ("call", c_void_p),
        ("context", c_void_p),
    ]


class shoal_custom_reduce_scatter(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("allocate", shoal_custom_allocate),
        ("release", shoal_custom_release),
        ("call", c_void_p),
        ("context", c_void_p),
    ]


class shoal_ddp_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("group", c_void_p),
        ("first_bucket_bytes", c_size_t),
        ("bucket_bytes", c_size_t),
        ("divide_factor", c_double),
        ("reduce_unused", c_bool),
        ("keeps_parameters", c_bool),
        ("ignored", POINTER(c_void_p)),
        ("n_ignored", c_size_t),
        ("keeps_buffers", c_bool),
    ]


class shoal_forward_call(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("module", c_void_p),
        ("inputs", POINTER(c_void_p)),
        ("n_inputs", c_size_t),
        ("outputs", POINTER(c_void_p)),
        ("n_outputs", c_size_t),
        ("is_recompute", c_bool),
    ]


class shoal_fsdp_memory_amounts(Structure):
    _fields_ = [
        ("shards", c_size_t),
        ("gradients", c_size_t),
        ("windows", c_size_t),
        ("buffers", c_size_t),
        ("other", c_size_t),
        ("total", c_size_t),
    ]


class shoal_fsdp_memory_report(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_ranks", c_int),
        ("rank", shoal_fsdp_memory_amounts),
        ("rank_peak", shoal_fsdp_memory_amounts),
        ("host", shoal_fsdp_memory_amounts),
        ("host_peak", shoal_fsdp_memory_amounts),
    ]


class shoal_fsdp_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("param_dtype", c_int),
        ("reduce_dtype", c_int),
        ("reshard", c_int),
        ("reshard_ranks", c_int),
        ("forward_prefetch", c_int),
        ("divide_factor", c_double),
        ("force_sum", c_bool),
        ("max_reduces", c_int),
        ("sharded", c_int),
        ("device", c_int),
    ]


class shoal_fsdp_shard(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("grad", c_void_p),
        ("count", c_size_t),
        ("offset", c_int64),
        ("length", c_int64),
    ]


class shoal_fsdp_unit_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("group", c_void_p),
        ("mesh", c_void_p),
        ("is_replicated", c_bool),
    ]


class shoal_fully_shard_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("group", c_void_p),
        ("mesh", c_void_p),
        ("is_replicated", c_bool),
        ("reshard", c_int),
        ("reshard_ranks", c_int),
        ("param_dtype", c_int),
        ("reduce_dtype", c_int),
        ("output_dtype", c_int),
        ("keeps_inputs", c_bool),
        ("forward_prefetch", c_int),
        ("max_reduces", c_int),
        ("placement", shoal_placement),
        ("placement_context", c_void_p),
        ("ignored", POINTER(c_void_p)),
        ("n_ignored", c_size_t),
        ("sharded", c_int),
        ("all_ranks", c_void_p),
        ("device", c_int),
    ]


class shoal_gather_buffer(Structure):
    _fields_ = [
        ("dtype", c_int),
        ("count", c_size_t),
    ]


class shoal_gather_extension(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("is_by_rows", c_bool),
        ("n_buffers", c_size_t),
        ("buffers", POINTER(shoal_gather_buffer)),
        ("metadata", c_void_p),
        ("metadata_bytes", c_size_t),
        ("encode", c_void_p),
        ("decode", c_void_p),
        ("context", c_void_p),
    ]


class shoal_gather_rows(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("first", c_int64),
        ("count", c_int64),
        ("row_count", c_size_t),
        ("dtype", c_int),
        ("compute", c_int),
        ("metadata", c_void_p),
        ("metadata_bytes", c_size_t),
        ("group", c_void_p),
        ("n_shards", c_int),
    ]


class shoal_insert_point(Structure):
    _fields_ = [
        ("node", c_void_p),
        ("is_after", c_bool),
    ]


class shoal_item(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("section", c_char_p),
        ("name", c_char_p),
        ("dtype", c_int),
        ("n_dims", c_int),
        ("shape", POINTER(c_int64)),
        ("dim", c_int),
        ("offset", c_int64),
        ("length", c_int64),
        ("tensor", c_void_p),
        ("data", c_void_p),
        ("may_be_missing", c_bool),
        ("owners", c_uint64),
        ("device", c_int),
    ]


class shoal_lowering_definition(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("op", c_char_p),
        ("doc", c_char_p),
        ("lower", shoal_lowering_function),
        ("context", c_void_p),
    ]


class shoal_module_definition(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("type", c_char_p),
        ("forward", shoal_module_forward),
        ("n_inputs", c_size_t),
        ("n_outputs", c_size_t),
        ("context", c_void_p),
        ("destroy", c_void_p),
    ]


class shoal_module_entry(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_uint32),
        ("path", c_char_p),
        ("name", c_char_p),
        ("module", c_void_p),
        ("tensor", c_void_p),
    ]


class shoal_module_hook_definition(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("pre_forward", shoal_module_hook_function),
        ("pre_place", c_int),
        ("post_forward", shoal_module_hook_function),
        ("post_place", c_int),
        ("context", c_void_p),
        ("destroy", c_void_p),
        ("failed_forward", c_void_p),
    ]


class shoal_op_definition(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("signature", c_char_p),
        ("flags", c_uint32),
        ("meta", shoal_op_meta),
        ("kernel", shoal_op_kernel),
        ("gradient", shoal_op_gradient),
        ("saves", c_char_p),
        ("doc", c_char_p),
        ("context", c_void_p),
        ("workspace", shoal_op_workspace_bytes),
    ]


class shoal_op_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("signature", c_char_p),
        ("doc", c_char_p),
        ("flags", c_uint32),
    ]


class shoal_option_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("type", c_char_p),
        ("range", c_char_p),
        ("default_value", c_char_p),
        ("value", c_char_p),
        ("source", c_char_p),
        ("doc", c_char_p),
    ]


class shoal_p2p_op(Structure):
    _fields_ = [
        ("direction", c_int),
        ("tensor", c_void_p),
        ("peer", c_int),
        ("tag", c_int),
    ]


class shoal_pass_definition(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("doc", c_char_p),
        ("run", shoal_pass_function),
        ("context", c_void_p),
    ]


class shoal_pass_report(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_created", c_size_t),
        ("n_erased", c_size_t),
        ("n_buckets", c_size_t),
    ]


class shoal_pending_gradient(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("full", c_void_p),
        ("full_dtype", c_int),
        ("full_count", c_size_t),
        ("n_blocks", c_int),
        ("partial", c_void_p),
        ("partial_dtype", c_int),
        ("partial_count", c_size_t),
    ]


class shoal_reduced_gradients(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("count", c_size_t),
        ("dtype", c_int),
        ("shards", c_void_p),
        ("replicas", c_void_p),
        ("unit", c_char_p),
        ("n_parts", c_size_t),
        ("layout", c_void_p),
        ("device", c_int),
    ]


class shoal_reduced_part(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("data", c_void_p),
        ("count", c_size_t),
    ]


class shoal_safetensors_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("dtype", c_int),
        ("n_dims", c_int),
        ("shape", POINTER(c_int64)),
        ("bytes", c_size_t),
        ("file_offset", c_uint64),
    ]


class shoal_shard_layout(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("unit", c_int),
        ("dtype", c_int),
        ("n_dims", c_int),
        ("dim", c_int),
        ("shape", c_int64 * 8),
        ("shard_shape", c_int64 * 8),
        ("offset", c_int64),
        ("length", c_int64),
        ("count", c_size_t),
        ("shard_count", c_size_t),
        ("n_shards", c_int),
        ("shard", c_int),
        ("needs_values", c_bool),
        ("gathered_dtype", c_int),
        ("owners", c_uint64),
        ("device", c_int),
    ]


class shoal_trace_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("n_events", c_size_t),
    ]


class shoal_transfer(Structure):
    _fields_ = [
        ("direction", c_int),
        ("buffer", c_void_p),
        ("count", c_size_t),
        ("dtype", c_int),
        ("peer", c_int),
        ("tag", c_int),
    ]


class shoal_transfer_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("timeout_s", c_double),
        ("sources", POINTER(c_int)),
    ]


class shoal_update(Structure):
    _fields_ = [
        ("parameter", c_void_p),
        ("gradient", c_void_p),
        ("first_moment", c_void_p),
        ("second_moment", c_void_p),
        ("lr", c_double),
        ("decay", c_double),
        ("beta1", c_double),
        ("one_minus_beta1", c_double),
        ("beta2", c_double),
        ("one_minus_beta2", c_double),
        ("step", c_double),
        ("root", c_double),
        ("eps", c_double),
    ]


class shoal_value_as(Union):
    _fields_ = [
        ("tensor", c_void_p),
        ("tensors", POINTER(c_void_p)),
        ("integer", c_int64),
        ("integers", POINTER(c_int64)),
        ("real", c_double),
        ("boolean", c_bool),
        ("dtype", c_int),
        ("string", c_char_p),
        ("group", c_void_p),
    ]


class shoal_value(Structure):
    _fields_ = [
        ("kind", c_int),
        ("count", c_size_t),
        ("as_", shoal_value_as),
    ]


class shoal_window_piece(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("count", c_size_t),
        ("data_dtype", c_int),
        ("window_dtype", c_int),
        ("offset", c_size_t),
    ]


class shoal_world_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_ranks", c_int),
        ("rank", c_int),
        ("key", c_char_p),
        ("exchange", shoal_exchange),
        ("exchange_context", c_void_p),
        ("transport", c_char_p),
        ("startup_timeout_s", c_double),
        ("timeout_s", c_double),
        ("close_timeout_s", c_double),
        ("mpi_comm", c_void_p),
        ("mpi_lock", c_void_p),
        ("mpi_unlock", c_void_p),
        ("mpi_lock_context", c_void_p),
        ("mpi_progress", c_int),
    ]


# The size and alignment that the C compiler gave each struct: a test compares them.
SIZES = {
    shoal_allocator: (32, 8),
    shoal_arg: (32, 8),
    shoal_backward_options: (16, 8),
    shoal_checkpoint_info: (80, 8),
    shoal_checkpoint_load_options: (80, 8),
    shoal_checkpoint_options: (80, 8),
    shoal_checkpoint_progress: (32, 8),
    shoal_collective: (152, 8),
    shoal_comm_block: (88, 8),
    shoal_compile_options: (64, 8),
    shoal_compile_report: (208, 8),
    shoal_cuda_grid: (28, 4),
    shoal_cuda_memory: (88, 8),
    shoal_cuda_usage: (16, 8),
    shoal_custom_all_gather: (40, 8),
    shoal_custom_reduce_scatter: (40, 8),
    shoal_ddp_options: (72, 8),
    shoal_forward_call: (56, 8),
    shoal_fsdp_memory_amounts: (48, 8),
    shoal_fsdp_memory_report: (208, 8),
    shoal_fsdp_options: (56, 8),
    shoal_fsdp_shard: (48, 8),
    shoal_fsdp_unit_options: (32, 8),
    shoal_fully_shard_options: (120, 8),
    shoal_gather_buffer: (16, 8),
    shoal_gather_extension: (80, 8),
    shoal_gather_rows: (80, 8),
    shoal_insert_point: (16, 8),
    shoal_item: (104, 8),
    shoal_lowering_definition: (40, 8),
    shoal_module_definition: (56, 8),
    shoal_module_entry: (48, 8),
    shoal_module_hook_definition: (64, 8),
    shoal_op_definition: (88, 8),
    shoal_op_info: (40, 8),
    shoal_option_info: (64, 8),
    shoal_p2p_op: (24, 8),
    shoal_part: (32, 8),
    shoal_pass_definition: (40, 8),
    shoal_pass_options: (56, 8),
    shoal_pass_report: (32, 8),
    shoal_pending_gradient: (64, 8),
    shoal_plan_stats: (88, 8),
    shoal_reduced_gradients: (80, 8),
    shoal_reduced_part: (32, 8),
    shoal_safetensors_info: (48, 8),
    shoal_shard_layout: (216, 8),
    shoal_trace_options: (24, 8),
    shoal_transfer: (40, 8),
    shoal_transfer_options: (24, 8),
    shoal_update: (104, 8),
    shoal_value: (24, 8),
    shoal_window_piece: (32, 8),
    shoal_world_options: (112, 8),
}

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "shoal_add": (c_void_p, (c_void_p, c_void_p)),
    "shoal_add_": (c_void_p, (c_void_p, c_void_p)),
    "shoal_add_scalar": (c_void_p, (c_void_p, c_double)),
    "shoal_add_scalar_": (c_void_p, (c_void_p, c_double)),
    "shoal_all_gather_into_tensor_coalesced": (POINTER(c_void_p), (POINTER(c_void_p), c_size_t, c_void_p)),
    "shoal_all_gather_tensor": (c_void_p, (c_void_p, c_int64, c_void_p)),
    "shoal_all_reduce": (c_void_p, (c_void_p, c_int, c_void_p)),
    "shoal_all_reduce_": (c_void_p, (c_void_p, c_int, c_void_p)),
    "shoal_all_reduce_coalesced": (POINTER(c_void_p), (POINTER(c_void_p), c_size_t, c_int, c_void_p)),
    "shoal_all_to_all_single": (c_void_p, (c_void_p, POINTER(c_int64), POINTER(c_int64), c_size_t, c_void_p)),
    "shoal_allocator_set": (c_int, (POINTER(shoal_allocator),)),
    "shoal_as_strided": (c_void_p, (c_void_p, POINTER(c_int64), POINTER(c_int64), c_int, c_int64)),
    "shoal_backward": (c_int, (c_void_p, c_void_p)),
    "shoal_backward_roots": (c_int, (POINTER(c_void_p), POINTER(c_void_p), c_size_t, POINTER(shoal_backward_options))),
    "shoal_batch_p2p_ops": (POINTER(c_void_p), (POINTER(shoal_p2p_op), c_size_t, c_void_p)),
    "shoal_broadcast": (c_void_p, (c_void_p, c_int, c_void_p)),
    "shoal_broadcast_": (c_void_p, (c_void_p, c_int, c_void_p)),
    "shoal_capture": (c_int, (shoal_step_function, c_void_p, POINTER(c_void_p), c_size_t, c_size_t, POINTER(c_void_p))),
    "shoal_cat": (c_void_p, (POINTER(c_void_p), c_size_t, c_int64)),
    "shoal_checkpoint_list": (c_int, (c_char_p, POINTER(c_int64), c_size_t, POINTER(c_size_t))),
    "shoal_checkpoint_load": (c_int, (c_void_p, c_char_p, c_void_p, POINTER(shoal_checkpoint_load_options), POINTER(shoal_checkpoint_info))),
    "shoal_checkpoint_newest": (c_int, (c_char_p, POINTER(shoal_checkpoint_info))),
    "shoal_checkpoint_save": (c_int, (c_void_p, c_char_p, c_void_p, POINTER(shoal_checkpoint_options))),
    "shoal_checkpoint_save_start": (c_int, (c_void_p, c_char_p, c_void_p, POINTER(shoal_checkpoint_options), POINTER(c_void_p))),
    "shoal_checkpoint_save_test": (c_bool, (c_void_p,)),
    "shoal_checkpoint_save_wait": (c_int, (c_void_p,)),
    "shoal_clip_grad_norm": (c_int, (POINTER(c_void_p), c_size_t, c_double, c_double, c_bool, POINTER(c_double))),
    "shoal_clip_grad_value": (c_int, (POINTER(c_void_p), c_size_t, c_double)),
    "shoal_clone": (c_void_p, (c_void_p,)),
    "shoal_comm_block_free": (None, (POINTER(shoal_comm_block),)),
    "shoal_comm_block_get": (c_int, (c_void_p, POINTER(shoal_comm_block))),
    "shoal_comm_blocks_free": (None, (POINTER(POINTER(shoal_comm_block)), c_size_t)),
    "shoal_comm_blocks_get": (c_int, (c_void_p, POINTER(c_void_p), c_size_t, shoal_comm_block_filter, c_void_p, POINTER(POINTER(POINTER(shoal_comm_block))), POINTER(c_size_t))),
    "shoal_compile": (c_int, (c_void_p, shoal_step_function, c_void_p, c_size_t, POINTER(shoal_compile_options), POINTER(c_void_p))),
    "shoal_compiled_free": (None, (c_void_p,)),
    "shoal_compiled_get_report": (c_int, (c_void_p, POINTER(shoal_compile_report))),
    "shoal_compiled_graph": (c_void_p, (c_void_p,)),
    "shoal_compiled_plan": (c_void_p, (c_void_p,)),
    "shoal_compiled_run": (c_int, (c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_void_p), c_size_t)),
    "shoal_contiguous": (c_void_p, (c_void_p,)),
    "shoal_copy_": (c_void_p, (c_void_p, c_void_p)),
    "shoal_cuda_get_memory": (c_int, (POINTER(shoal_cuda_memory), c_bool)),
    "shoal_cuda_launch": (c_int, (c_void_p, c_char_p, POINTER(shoal_cuda_grid), POINTER(c_void_p))),
    "shoal_cuda_load": (c_int, (c_void_p, POINTER(c_void_p))),
    "shoal_cuda_set_stream": (c_int, (c_void_p,)),
    "shoal_cuda_unload": (None, (c_void_p,)),
    "shoal_data": (c_void_p, (c_void_p,)),
    "shoal_ddp": (c_int, (c_void_p, POINTER(shoal_ddp_options))),
    "shoal_ddp_clip_grad_norm": (c_int, (c_void_p, c_double, c_double, c_bool, POINTER(c_double))),
    "shoal_ddp_clip_grad_value": (c_int, (c_void_p, c_double)),
    "shoal_ddp_is_wrapped": (c_bool, (c_void_p,)),
    "shoal_ddp_reset": (c_int, (c_void_p,)),
    "shoal_ddp_set_sync": (c_int, (c_void_p, c_bool)),
    "shoal_default_passes": (c_char_p, ()),
    "shoal_detach": (c_void_p, (c_void_p,)),
    "shoal_device_data": (c_int, (c_void_p, POINTER(c_void_p))),
    "shoal_device_find": (c_int, (c_char_p, POINTER(c_int))),
    "shoal_device_follow": (c_int, (c_int, c_int64)),
    "shoal_device_mutable_data": (c_int, (c_void_p, POINTER(c_void_p))),
    "shoal_device_name": (c_char_p, (c_int,)),
    "shoal_device_stream": (c_int, (c_int, POINTER(c_int64))),
    "shoal_device_synchronize": (c_int, (c_int,)),
    "shoal_device_use_stream": (c_int, (c_int, c_int64)),
    "shoal_div": (c_void_p, (c_void_p, c_void_p)),
    "shoal_div_scalar": (c_void_p, (c_void_p, c_double)),
    "shoal_dtype_bytes": (c_size_t, (c_int,)),
    "shoal_dtype_find": (c_int, (c_char_p, POINTER(c_int))),
    "shoal_dtype_is_floating": (c_bool, (c_int,)),
    "shoal_dtype_name": (c_char_p, (c_int,)),
    "shoal_empty": (c_void_p, (POINTER(c_int64), c_int, c_int)),
    "shoal_empty_on": (c_void_p, (POINTER(c_int64), c_int, c_int, c_int)),
    "shoal_error_text": (c_char_p, ()),
    "shoal_expand": (c_void_p, (c_void_p, POINTER(c_int64), c_int)),
    "shoal_fail": (c_int, (c_int, c_char_p)),
    "shoal_fail_null": (c_int, (c_char_p, c_char_p)),
    "shoal_find_largest": (c_int, (POINTER(c_void_p), c_size_t, POINTER(c_double))),
    "shoal_fp_mode_enter": (c_uint64, ()),
    "shoal_fp_mode_leave": (None, (c_uint64,)),
    "shoal_from_device_memory": (c_void_p, (c_int, c_void_p, POINTER(c_int64), c_int, c_int, POINTER(c_int64), shoal_deleter, c_void_p)),
    "shoal_from_dlpack": (c_void_p, (c_void_p,)),
    "shoal_from_memory": (c_void_p, (c_void_p, POINTER(c_int64), c_int, c_int, POINTER(c_int64), shoal_deleter, c_void_p)),
    "shoal_fsdp_add_param": (c_int, (c_void_p, c_int, c_char_p, c_int, c_int, POINTER(c_int64), c_void_p, POINTER(c_int))),
    "shoal_fsdp_add_param_along": (c_int, (c_void_p, c_int, c_char_p, c_int, c_int, POINTER(c_int64), c_int, c_void_p, POINTER(c_int))),
    "shoal_fsdp_add_unit": (c_int, (c_void_p, POINTER(shoal_fsdp_unit_options), POINTER(c_int))),
    "shoal_fsdp_broadcast": (c_int, (c_void_p, c_void_p, c_int)),
    "shoal_fsdp_broadcast_array": (c_int, (c_void_p, c_int, c_void_p, c_void_p, c_int)),
    "shoal_fsdp_clip_grad_norm": (c_int, (c_void_p, c_double, c_double, c_bool, POINTER(c_double))),
    "shoal_fsdp_clip_grad_value": (c_int, (c_void_p, c_double)),
    "shoal_fsdp_create": (c_int, (c_void_p, POINTER(shoal_fsdp_options), POINTER(c_void_p))),
    "shoal_fsdp_create_on_mesh": (c_int, (c_void_p, POINTER(shoal_fsdp_options), POINTER(c_void_p))),
    "shoal_fsdp_create_replicated": (c_int, (c_void_p, POINTER(shoal_fsdp_options), POINTER(c_void_p))),
    "shoal_fsdp_end_backward": (c_int, (c_void_p,)),
    "shoal_fsdp_end_forward": (c_int, (c_void_p,)),
    "shoal_fsdp_find_param": (c_int, (c_void_p, c_char_p, POINTER(c_int))),
    "shoal_fsdp_free": (None, (c_void_p,)),
    "shoal_fsdp_full_param": (c_void_p, (c_void_p, c_int)),
    "shoal_fsdp_gather": (c_int, (c_void_p, c_void_p, c_int)),
    "shoal_fsdp_gather_array": (c_int, (c_void_p, c_int, c_void_p, c_void_p, c_int)),
    "shoal_fsdp_get_layout": (c_int, (c_void_p, POINTER(shoal_shard_layout))),
    "shoal_fsdp_get_pending": (c_int, (c_void_p, POINTER(shoal_pending_gradient))),
    "shoal_fsdp_grad": (c_void_p, (c_void_p, c_int)),
    "shoal_fsdp_grad_to_store": (c_void_p, (c_void_p, c_int, POINTER(c_bool))),
    "shoal_fsdp_load": (c_int, (c_void_p, c_void_p)),
    "shoal_fsdp_load_array": (c_int, (c_void_p, c_int, c_void_p, c_void_p)),
    "shoal_fsdp_load_slice": (c_int, (c_void_p, c_int64, c_int64, c_void_p)),
    "shoal_fsdp_memory": (c_int, (c_void_p, POINTER(shoal_fsdp_memory_report))),
    "shoal_fsdp_memory_text": (c_size_t, (POINTER(shoal_fsdp_memory_report), c_char_p, c_size_t)),
    "shoal_fsdp_n_params": (c_int, (c_void_p,)),
    "shoal_fsdp_param_name": (c_char_p, (c_void_p,)),
    "shoal_fsdp_param_of": (c_void_p, (c_void_p, c_int)),
    "shoal_fsdp_post_backward": (c_int, (c_void_p, c_int)),
    "shoal_fsdp_post_forward": (c_int, (c_void_p, c_int)),
    "shoal_fsdp_pre_backward": (c_int, (c_void_p, c_int)),
    "shoal_fsdp_pre_forward": (c_int, (c_void_p, c_int)),
    "shoal_fsdp_read_shard": (c_int, (c_void_p, c_int, POINTER(shoal_fsdp_shard))),
    "shoal_fsdp_reset": (c_int, (c_void_p,)),
    "shoal_fsdp_reshard": (c_int, (c_void_p,)),
    "shoal_fsdp_set_accumulated_hook": (c_int, (c_void_p, shoal_fsdp_accumulated_hook, c_void_p)),
    "shoal_fsdp_set_all_reduce": (c_int, (c_void_p, c_bool)),
    "shoal_fsdp_set_all_reduce_hook": (c_int, (c_void_p, shoal_all_reduce_hook, c_void_p)),
    "shoal_fsdp_set_backward_prefetch": (c_int, (c_void_p, POINTER(c_void_p), c_size_t)),
    "shoal_fsdp_set_custom_all_gather": (c_int, (c_void_p, POINTER(shoal_custom_all_gather))),
    "shoal_fsdp_set_custom_reduce_scatter": (c_int, (c_void_p, POINTER(shoal_custom_reduce_scatter))),
    "shoal_fsdp_set_divide_factor": (c_int, (c_void_p, c_double)),
    "shoal_fsdp_set_force_sum": (c_int, (c_void_p, c_bool)),
    "shoal_fsdp_set_forward_prefetch": (c_int, (c_void_p, POINTER(c_void_p), c_size_t)),
    "shoal_fsdp_set_gather_extension": (c_int, (c_void_p, POINTER(shoal_gather_extension))),
    "shoal_fsdp_set_is_last_backward": (c_int, (c_void_p, c_bool)),
    "shoal_fsdp_set_reduce_unused": (c_int, (c_void_p, c_bool)),
    "shoal_fsdp_set_requires_grad": (c_int, (c_void_p, c_int, c_bool)),
    "shoal_fsdp_set_reshard": (c_int, (c_void_p, c_int)),
    "shoal_fsdp_set_reshard_after_backward": (c_int, (c_void_p, c_bool)),
    "shoal_fsdp_set_sync": (c_int, (c_void_p, c_bool)),
    "shoal_fsdp_set_unit_name": (c_int, (c_void_p, c_char_p)),
    "shoal_fsdp_set_unshard_in_backward": (c_int, (c_void_p, c_bool)),
    "shoal_fsdp_synchronize": (c_int, (c_void_p,)),
    "shoal_fsdp_unit_of": (c_void_p, (c_void_p, c_int)),
    "shoal_fsdp_unshard": (c_int, (c_void_p,)),
    "shoal_fsdp_update_shard": (c_int, (c_void_p, c_int, POINTER(shoal_fsdp_shard))),
    "shoal_fsdp_wait": (c_int, (c_void_p,)),
    "shoal_fsdp_zero_grad": (c_int, (c_void_p,)),
    "shoal_full": (c_void_p, (POINTER(c_int64), c_int, c_double, c_int)),
    "shoal_fully_shard": (c_int, (c_void_p, POINTER(shoal_fully_shard_options))),
    "shoal_fully_shard_broadcast_all": (c_int, (c_void_p, c_void_p, c_int)),
    "shoal_fully_shard_context": (c_int, (c_void_p, POINTER(c_void_p))),
    "shoal_fully_shard_find_param": (c_int, (c_void_p, POINTER(shoal_module_entry), POINTER(c_void_p))),
    "shoal_fully_shard_list": (c_int, (POINTER(c_void_p), c_size_t, POINTER(shoal_fully_shard_options))),
    "shoal_fully_shard_param": (c_void_p, (c_void_p, c_char_p)),
    "shoal_fully_shard_unit": (c_void_p, (c_void_p, c_bool)),
    "shoal_grad": (c_void_p, (c_void_p,)),
    "shoal_graph_add_group": (c_int, (c_void_p, c_char_p, POINTER(c_int), c_size_t, c_size_t)),
    "shoal_graph_bound_input": (c_void_p, (c_void_p, c_size_t)),
    "shoal_graph_bound_leaf": (c_void_p, (c_void_p, c_size_t)),
    "shoal_graph_call": (c_int, (c_void_p, c_void_p, POINTER(shoal_arg), c_size_t, c_char_p, POINTER(c_void_p))),
    "shoal_graph_constant": (c_int, (c_void_p, c_char_p, c_void_p, POINTER(c_void_p))),
    "shoal_graph_create": (c_int, (POINTER(c_void_p),)),
    "shoal_graph_find": (c_void_p, (c_void_p, c_char_p)),
    "shoal_graph_first": (c_void_p, (c_void_p,)),
    "shoal_graph_free": (None, (c_void_p,)),
    "shoal_graph_insert_point": (shoal_insert_point, (c_void_p,)),
    "shoal_graph_last": (c_void_p, (c_void_p,)),
    "shoal_graph_lint": (c_int, (c_void_p,)),
    "shoal_graph_move_nodes": (c_int, (c_void_p, POINTER(c_void_p), c_size_t, shoal_insert_point)),
    "shoal_graph_n_nodes": (c_size_t, (c_void_p,)),
    "shoal_graph_opaque": (c_int, (c_void_p, c_char_p, POINTER(shoal_arg), c_size_t, POINTER(c_void_p), c_size_t, c_bool, c_char_p, POINTER(c_void_p))),
    "shoal_graph_output": (c_int, (c_void_p, POINTER(shoal_arg), POINTER(c_void_p))),
    "shoal_graph_parse": (c_int, (c_char_p, c_size_t, POINTER(c_void_p))),
    "shoal_graph_placeholder": (c_int, (c_void_p, c_char_p, POINTER(c_int64), c_int, c_int, POINTER(c_void_p))),
    "shoal_graph_print": (c_int, (c_void_p, shoal_graph_write, c_void_p)),
    "shoal_graph_print_dot": (c_int, (c_void_p, shoal_graph_write, c_void_p)),
    "shoal_graph_remove_dead": (c_int, (c_void_p, POINTER(c_size_t))),
    "shoal_graph_run": (c_int, (c_void_p, c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_void_p), c_size_t)),
    "shoal_graph_run_passes": (c_int, (c_void_p, POINTER(c_char_p), c_size_t, POINTER(shoal_pass_options), POINTER(shoal_pass_report))),
    "shoal_graph_set_insert_point": (c_int, (c_void_p, shoal_insert_point)),
    "shoal_graph_sort": (c_int, (c_void_p,)),
    "shoal_group_abandon": (c_int, (c_void_p,)),
    "shoal_group_abort": (c_int, (c_void_p, c_char_p)),
    "shoal_group_all_gather": (c_int, (c_void_p, c_void_p, c_void_p, c_size_t, c_int)),
    "shoal_group_all_gather_start": (c_int, (c_void_p, c_void_p, c_void_p, c_size_t, c_int, POINTER(c_void_p))),
    "shoal_group_all_gather_v": (c_int, (c_void_p, c_void_p, c_void_p, POINTER(c_size_t), c_int)),
    "shoal_group_all_gather_v_start": (c_int, (c_void_p, c_void_p, c_void_p, POINTER(c_size_t), c_int, POINTER(c_void_p))),
    "shoal_group_all_reduce": (c_int, (c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int)),
    "shoal_group_all_reduce_start": (c_int, (c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, POINTER(c_void_p))),
    "shoal_group_all_to_all": (c_int, (c_void_p, c_void_p, c_void_p, c_size_t, c_int)),
    "shoal_group_all_to_all_start": (c_int, (c_void_p, c_void_p, c_void_p, c_size_t, c_int, POINTER(c_void_p))),
    "shoal_group_all_to_all_v": (c_int, (c_void_p, c_void_p, POINTER(c_size_t), c_void_p, POINTER(c_size_t), c_int)),
    "shoal_group_all_to_all_v_start": (c_int, (c_void_p, c_void_p, POINTER(c_size_t), c_void_p, POINTER(c_size_t), c_int, POINTER(c_void_p))),
    "shoal_group_barrier": (c_int, (c_void_p,)),
    "shoal_group_barrier_start": (c_int, (c_void_p, POINTER(c_void_p))),
    "shoal_group_broadcast": (c_int, (c_void_p, c_void_p, c_size_t, c_int, c_int)),
    "shoal_group_broadcast_start": (c_int, (c_void_p, c_void_p, c_size_t, c_int, c_int, POINTER(c_void_p))),
    "shoal_group_check_equal": (c_int, (c_void_p, c_char_p, c_void_p, c_size_t)),
    "shoal_group_check_equal_integer": (c_int, (c_void_p, c_char_p, c_int64)),
    "shoal_group_check_equal_real": (c_int, (c_void_p, c_char_p, c_double)),
    "shoal_group_close": (c_int, (c_void_p,)),
    "shoal_group_collective": (c_int, (c_void_p, POINTER(shoal_collective))),
    "shoal_group_collective_start": (c_int, (c_void_p, POINTER(shoal_collective), POINTER(c_void_p))),
    "shoal_group_create": (c_int, (c_void_p, POINTER(c_int), c_int, c_char_p, POINTER(c_void_p))),
    "shoal_group_create_blocks": (c_int, (c_void_p, c_int, c_char_p, POINTER(c_void_p))),
    "shoal_group_create_lists": (c_int, (c_void_p, POINTER(POINTER(c_int)), POINTER(c_int), c_int, c_char_p, POINTER(c_void_p))),
    "shoal_group_error": (c_int, (c_void_p,)),
    "shoal_group_find": (c_int, (c_void_p, c_char_p, POINTER(c_void_p))),
    "shoal_group_gather": (c_int, (c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int)),
    "shoal_group_gather_start": (c_int, (c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, POINTER(c_void_p))),
    "shoal_group_gather_v": (c_int, (c_void_p, c_void_p, c_void_p, POINTER(c_size_t), c_int, c_int)),
    "shoal_group_gather_v_start": (c_int, (c_void_p, c_void_p, c_void_p, POINTER(c_size_t), c_int, c_int, POINTER(c_void_p))),
    "shoal_group_n_ranks": (c_int, (c_void_p,)),
    "shoal_group_name": (c_char_p, (c_void_p,)),
    "shoal_group_rank": (c_int, (c_void_p,)),
    "shoal_group_rank_of": (c_int, (c_void_p, c_int)),
    "shoal_group_recv": (c_int, (c_void_p, c_void_p, c_size_t, c_int, c_int, c_int)),
    "shoal_group_recv_any": (c_int, (c_void_p, c_void_p, c_size_t, c_int, c_int, POINTER(c_int))),
    "shoal_group_recv_any_start": (c_int, (c_void_p, c_void_p, c_size_t, c_int, c_int, POINTER(c_int), POINTER(c_void_p))),
    "shoal_group_recv_start": (c_int, (c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, POINTER(c_void_p))),
    "shoal_group_reduce": (c_int, (c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, c_int)),
    "shoal_group_reduce_scatter": (c_int, (c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int)),
    "shoal_group_reduce_scatter_start": (c_int, (c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, POINTER(c_void_p))),
    "shoal_group_reduce_scatter_v": (c_int, (c_void_p, c_void_p, c_void_p, POINTER(c_size_t), c_int, c_int)),
    "shoal_group_reduce_scatter_v_start": (c_int, (c_void_p, c_void_p, c_void_p, POINTER(c_size_t), c_int, c_int, POINTER(c_void_p))),
    "shoal_group_reduce_start": (c_int, (c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, POINTER(c_void_p))),
    "shoal_group_scatter": (c_int, (c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int)),
    "shoal_group_scatter_start": (c_int, (c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, POINTER(c_void_p))),
    "shoal_group_scatter_v": (c_int, (c_void_p, c_void_p, c_void_p, POINTER(c_size_t), c_int, c_int)),
    "shoal_group_scatter_v_start": (c_int, (c_void_p, c_void_p, c_void_p, POINTER(c_size_t), c_int, c_int, POINTER(c_void_p))),
    "shoal_group_send": (c_int, (c_void_p, c_void_p, c_size_t, c_int, c_int, c_int)),
    "shoal_group_send_start": (c_int, (c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, POINTER(c_void_p))),
    "shoal_group_sequence": (c_uint64, (c_void_p,)),
    "shoal_group_set_timeout": (c_int, (c_void_p, c_double)),
    "shoal_group_timeout": (c_double, (c_void_p,)),
    "shoal_group_transfer": (c_int, (c_void_p, POINTER(shoal_transfer), c_size_t)),
    "shoal_group_transfer_start": (c_int, (c_void_p, POINTER(shoal_transfer), c_size_t, POINTER(c_void_p))),
    "shoal_group_transfer_with": (c_int, (c_void_p, POINTER(shoal_transfer), c_size_t, POINTER(shoal_transfer_options))),
    "shoal_group_transfer_with_start": (c_int, (c_void_p, POINTER(shoal_transfer), c_size_t, POINTER(shoal_transfer_options), POINTER(c_void_p))),
    "shoal_group_world": (c_void_p, (c_void_p,)),
    "shoal_group_world_rank": (c_int, (c_void_p, c_int)),
    "shoal_hook_remove": (None, (c_void_p,)),
    "shoal_identity": (c_int, (POINTER(c_void_p), c_size_t, shoal_identity_hook, c_void_p, POINTER(c_void_p))),
    "shoal_in_backward": (c_bool, ()),
    "shoal_irecv": (c_void_p, (c_void_p, c_int, c_int, c_void_p)),
    "shoal_is_capturing": (c_bool, ()),
    "shoal_is_fully_sharded": (c_bool, (c_void_p,)),
    "shoal_is_leaf": (c_bool, (c_void_p,)),
    "shoal_is_replaced": (c_bool, (c_void_p,)),
    "shoal_is_shard": (c_bool, (c_void_p,)),
    "shoal_isend": (c_void_p, (c_void_p, c_int, c_int, c_void_p)),
    "shoal_items_add": (c_int, (c_void_p, POINTER(shoal_item))),
    "shoal_items_add_alias": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p)),
    "shoal_items_add_fsdp": (c_int, (c_void_p, c_char_p, c_void_p)),
    "shoal_items_add_fsdp_array": (c_int, (c_void_p, c_char_p, c_char_p, c_void_p, c_int, c_void_p)),
    "shoal_items_add_integer": (c_int, (c_void_p, c_char_p, POINTER(c_int64))),
    "shoal_items_add_module": (c_int, (c_void_p, c_char_p, c_void_p)),
    "shoal_items_add_real": (c_int, (c_void_p, c_char_p, POINTER(c_double))),
    "shoal_items_add_string": (c_int, (c_void_p, c_char_p, c_char_p, c_size_t)),
    "shoal_items_add_tensor": (c_int, (c_void_p, c_char_p, c_char_p, c_void_p)),
    "shoal_items_append": (c_int, (c_void_p, c_void_p)),
    "shoal_items_count": (c_size_t, (c_void_p,)),
    "shoal_items_create": (c_int, (POINTER(c_void_p),)),
    "shoal_items_find": (c_int64, (c_void_p, c_char_p, c_char_p)),
    "shoal_items_find_tensor": (c_int64, (c_void_p, c_void_p)),
    "shoal_items_free": (None, (c_void_p,)),
    "shoal_items_get": (c_int, (c_void_p, c_size_t, POINTER(shoal_item))),
    "shoal_items_on_loaded": (c_int, (c_void_p, shoal_items_loaded, c_void_p, c_void_p)),
    "shoal_log_set": (None, (shoal_log_function, c_void_p, c_int)),
    "shoal_log_write": (None, (c_int, c_char_p)),
    "shoal_lowering_call": (c_int, (c_void_p, c_void_p, POINTER(shoal_arg), c_size_t)),
    "shoal_lowering_can_realize": (c_bool, (c_void_p, c_void_p)),
    "shoal_lowering_mark_skip_wait": (None, (c_void_p,)),
    "shoal_lowering_realize": (c_int, (c_void_p, c_void_p)),
    "shoal_lowering_register": (c_int, (POINTER(shoal_lowering_definition),)),
    "shoal_lowering_should_skip_wait": (c_bool, (c_void_p, c_void_p)),
    "shoal_mean": (c_void_p, (c_void_p, POINTER(c_int64), c_int, c_bool)),
    "shoal_mesh_concatenate": (c_int, (POINTER(c_void_p), c_int, POINTER(c_void_p))),
    "shoal_mesh_coordinate": (c_bool, (c_void_p, POINTER(c_int))),
    "shoal_mesh_create": (c_int, (c_void_p, c_char_p, POINTER(c_int), POINTER(c_int), c_int, POINTER(c_char_p), POINTER(c_void_p))),
    "shoal_mesh_describe": (c_size_t, (c_void_p, c_char_p, c_size_t)),
    "shoal_mesh_device": (c_char_p, (c_void_p,)),
    "shoal_mesh_dim_name": (c_char_p, (c_void_p, c_int)),
    "shoal_mesh_equal": (c_bool, (c_void_p, c_void_p)),
    "shoal_mesh_find_dim": (c_int, (c_void_p, c_char_p)),
    "shoal_mesh_flatten": (c_int, (c_void_p, c_char_p, POINTER(c_void_p))),
    "shoal_mesh_free": (None, (c_void_p,)),
    "shoal_mesh_from_groups": (c_int, (POINTER(c_void_p), c_int, c_char_p, POINTER(c_int), POINTER(c_int), c_int, POINTER(c_char_p), POINTER(c_void_p))),
    "shoal_mesh_group": (c_void_p, (c_void_p, c_int)),
    "shoal_mesh_group_by_name": (c_void_p, (c_void_p, c_char_p)),
    "shoal_mesh_n_dims": (c_int, (c_void_p,)),
    "shoal_mesh_n_ranks": (c_int, (c_void_p,)),
    "shoal_mesh_ranks": (c_int, (c_void_p, POINTER(c_int))),
    "shoal_mesh_ref": (c_void_p, (c_void_p,)),
    "shoal_mesh_shape": (POINTER(c_int), (c_void_p,)),
    "shoal_mesh_slice": (c_int, (c_void_p, POINTER(c_char_p), c_int, POINTER(c_void_p))),
    "shoal_mesh_unflatten": (c_int, (c_void_p, c_int, POINTER(c_int), c_int, POINTER(c_char_p), POINTER(c_void_p))),
    "shoal_mesh_world": (c_void_p, (c_void_p,)),
    "shoal_module_add_buffer": (c_int, (c_void_p, c_char_p, c_void_p)),
    "shoal_module_add_child": (c_int, (c_void_p, c_char_p, c_void_p)),
    "shoal_module_add_hook": (c_int, (c_void_p, POINTER(shoal_module_hook_definition), POINTER(c_void_p))),
    "shoal_module_add_parameter": (c_int, (c_void_p, c_char_p, c_void_p)),
    "shoal_module_apply": (c_int, (c_void_p, c_uint32, shoal_module_function, c_void_p)),
    "shoal_module_buffer": (c_void_p, (c_void_p, c_char_p)),
    "shoal_module_buffer_at": (c_void_p, (c_void_p, c_size_t, POINTER(c_char_p))),
    "shoal_module_call": (c_int, (c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_void_p), c_size_t)),
    "shoal_module_call_function": (c_int, (c_void_p, shoal_module_forward, POINTER(c_void_p), c_size_t, POINTER(c_void_p), c_size_t)),
    "shoal_module_call_one": (c_void_p, (c_void_p, c_void_p)),
    "shoal_module_child": (c_void_p, (c_void_p, c_char_p)),
    "shoal_module_child_at": (c_void_p, (c_void_p, c_size_t, POINTER(c_char_p))),
    "shoal_module_context": (c_void_p, (c_void_p,)),
    "shoal_module_count": (c_int, (c_void_p, c_uint32, POINTER(c_size_t))),
    "shoal_module_create": (c_int, (POINTER(shoal_module_definition), POINTER(c_void_p))),
    "shoal_module_extra": (c_void_p, (c_void_p, c_void_p)),
    "shoal_module_find_buffer": (c_void_p, (c_void_p, c_char_p)),
    "shoal_module_find_child": (c_void_p, (c_void_p, c_char_p)),
    "shoal_module_find_parameter": (c_void_p, (c_void_p, c_char_p)),
    "shoal_module_get_definition": (POINTER(shoal_module_definition), (c_void_p,)),
    "shoal_module_hook_remove": (None, (c_void_p,)),
    "shoal_module_parameter": (c_void_p, (c_void_p, c_char_p)),
    "shoal_module_parameter_at": (c_void_p, (c_void_p, c_size_t, POINTER(c_char_p))),
    "shoal_module_parameters": (POINTER(c_void_p), (c_void_p, POINTER(c_size_t))),
    "shoal_module_ref": (c_void_p, (c_void_p,)),
    "shoal_module_set_buffer": (c_int, (c_void_p, c_char_p, c_void_p)),
    "shoal_module_set_extra": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "shoal_module_set_parameter": (c_int, (c_void_p, c_char_p, c_void_p)),
    "shoal_module_type": (c_char_p, (c_void_p,)),
    "shoal_module_unref": (None, (c_void_p,)),
    "shoal_module_walk": (c_int, (c_void_p, c_uint32, shoal_module_visitor, c_void_p)),
    "shoal_mul": (c_void_p, (c_void_p, c_void_p)),
    "shoal_mul_": (c_void_p, (c_void_p, c_void_p)),
    "shoal_mul_scalar": (c_void_p, (c_void_p, c_double)),
    "shoal_mul_scalar_": (c_void_p, (c_void_p, c_double)),
    "shoal_mutable_data": (c_void_p, (c_void_p,)),
    "shoal_narrow": (c_void_p, (c_void_p, c_int64, c_int64, c_int64)),
    "shoal_neg": (c_void_p, (c_void_p,)),
    "shoal_node_args": (POINTER(shoal_arg), (c_void_p, POINTER(c_size_t))),
    "shoal_node_erase": (c_int, (c_void_p,)),
    "shoal_node_first_user": (c_void_p, (c_void_p,)),
    "shoal_node_get_kind": (c_int, (c_void_p,)),
    "shoal_node_inputs": (POINTER(c_void_p), (c_void_p, POINTER(c_size_t))),
    "shoal_node_is_before": (c_bool, (c_void_p, c_void_p)),
    "shoal_node_is_list": (c_bool, (c_void_p,)),
    "shoal_node_move_after": (c_int, (c_void_p, c_void_p)),
    "shoal_node_move_before": (c_int, (c_void_p, c_void_p)),
    "shoal_node_n_users": (c_size_t, (c_void_p,)),
    "shoal_node_n_values": (c_size_t, (c_void_p,)),
    "shoal_node_name": (c_char_p, (c_void_p,)),
    "shoal_node_next": (c_void_p, (c_void_p,)),
    "shoal_node_next_user": (c_void_p, (c_void_p, c_void_p)),
    "shoal_node_op": (c_void_p, (c_void_p,)),
    "shoal_node_prev": (c_void_p, (c_void_p,)),
    "shoal_node_replace": (c_int, (c_void_p, c_void_p, shoal_node_filter, c_void_p, POINTER(c_size_t))),
    "shoal_node_set_args": (c_int, (c_void_p, POINTER(shoal_arg), c_size_t)),
    "shoal_node_target": (c_char_p, (c_void_p,)),
    "shoal_node_value": (c_void_p, (c_void_p, c_size_t)),
    "shoal_on_accumulated": (c_int, (c_void_p, shoal_leaf_hook, c_void_p, POINTER(c_void_p))),
    "shoal_on_backward_end": (c_int, (shoal_end_hook, c_void_p)),
    "shoal_on_gradient": (c_int, (c_void_p, shoal_gradient_hook, c_void_p, POINTER(c_void_p))),
    "shoal_op_add_kernel": (c_int, (c_void_p, c_int, shoal_op_kernel)),
    "shoal_op_at": (c_void_p, (c_size_t,)),
    "shoal_op_call": (c_int, (c_void_p, POINTER(shoal_value), c_size_t, POINTER(shoal_value))),
    "shoal_op_call_collective": (c_int, (c_void_p, POINTER(shoal_value), c_size_t, POINTER(shoal_value))),
    "shoal_op_context": (c_void_p, (c_void_p,)),
    "shoal_op_describe": (c_int, (c_void_p, POINTER(shoal_op_info))),
    "shoal_op_find": (c_int, (c_char_p, POINTER(c_void_p))),
    "shoal_op_name": (c_char_p, (c_void_p,)),
    "shoal_op_needs_gradient": (c_bool, (c_void_p, c_size_t)),
    "shoal_op_output": (c_int, (c_void_p, POINTER(c_int64), c_int, c_int)),
    "shoal_op_output_alias": (c_int, (c_void_p, c_void_p)),
    "shoal_op_output_view": (c_int, (c_void_p, c_void_p, POINTER(c_int64), POINTER(c_int64), c_int, c_int64)),
    "shoal_op_register": (c_int, (POINTER(shoal_op_definition), POINTER(c_void_p))),
    "shoal_op_set_basis": (c_int, (c_char_p, c_char_p)),
    "shoal_op_workspace": (c_void_p, (c_void_p, c_size_t)),
    "shoal_option_get": (c_bool, (c_size_t, POINTER(shoal_option_info))),
    "shoal_pass_at": (c_int, (c_size_t, POINTER(shoal_pass_definition))),
    "shoal_pass_register": (c_int, (POINTER(shoal_pass_definition),)),
    "shoal_permute": (c_void_p, (c_void_p, POINTER(c_int64), c_int)),
    "shoal_plan_create": (c_int, (c_void_p, c_void_p, POINTER(shoal_compile_options), POINTER(c_void_p))),
    "shoal_plan_free": (None, (c_void_p,)),
    "shoal_plan_get_stats": (c_int, (c_void_p, POINTER(shoal_plan_stats))),
    "shoal_plan_print": (c_int, (c_void_p, shoal_graph_write, c_void_p)),
    "shoal_plan_run": (c_int, (c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_void_p), c_size_t)),
    "shoal_read": (c_int, (c_void_p, c_void_p, c_size_t)),
    "shoal_recompute": (c_int, (shoal_recompute_function, c_void_p, c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_void_p), c_size_t)),
    "shoal_reduce": (c_void_p, (c_void_p, c_int, c_int, c_void_p)),
    "shoal_reduce_op_find": (c_int, (c_char_p, POINTER(c_int))),
    "shoal_reduce_op_name": (c_char_p, (c_int,)),
    "shoal_reduce_scatter_tensor": (c_void_p, (c_void_p, c_int, c_int64, c_void_p)),
    "shoal_reduce_scatter_tensor_coalesced": (POINTER(c_void_p), (POINTER(c_void_p), c_size_t, c_int, POINTER(c_int64), c_void_p)),
    "shoal_reduced_gradients_part": (c_int, (POINTER(shoal_reduced_gradients), c_size_t, POINTER(shoal_reduced_part))),
    "shoal_requires_grad": (c_bool, (c_void_p,)),
    "shoal_reshape": (c_void_p, (c_void_p, POINTER(c_int64), c_int)),
    "shoal_safetensors_close": (None, (c_void_p,)),
    "shoal_safetensors_count": (c_int64, (c_void_p,)),
    "shoal_safetensors_find": (c_int64, (c_void_p, c_char_p)),
    "shoal_safetensors_get": (c_int, (c_void_p, c_int64, POINTER(shoal_safetensors_info))),
    "shoal_safetensors_layout_add": (c_int, (c_void_p, c_char_p, POINTER(c_int64), c_int, c_int)),
    "shoal_safetensors_layout_add_metadata": (c_int, (c_void_p, c_char_p, c_char_p)),
    "shoal_safetensors_layout_create": (c_int, (POINTER(c_void_p),)),
    "shoal_safetensors_layout_free": (None, (c_void_p,)),
    "shoal_safetensors_metadata": (c_char_p, (c_void_p, c_char_p)),
    "shoal_safetensors_metadata_key": (c_char_p, (c_void_p, c_int64)),
    "shoal_safetensors_open": (c_int, (c_char_p, POINTER(c_void_p))),
    "shoal_safetensors_open_memory": (c_int, (c_void_p, c_size_t, POINTER(c_void_p))),
    "shoal_safetensors_read_box": (c_int, (c_void_p, c_int64, POINTER(c_int64), POINTER(c_int64), c_void_p, POINTER(c_int64))),
    "shoal_safetensors_read_range": (c_int, (c_void_p, c_int64, c_uint64, c_void_p, c_size_t)),
    "shoal_safetensors_save": (c_int, (c_char_p, POINTER(c_char_p), POINTER(c_void_p), c_size_t, POINTER(c_char_p))),
    "shoal_safetensors_tensor": (c_void_p, (c_void_p, c_int64)),
    "shoal_safetensors_tensor_by_name": (c_void_p, (c_void_p, c_char_p)),
    "shoal_safetensors_write": (c_int, (c_void_p, c_int64, c_uint64, c_void_p, c_size_t)),
    "shoal_safetensors_write_box": (c_int, (c_void_p, c_int64, POINTER(c_int64), POINTER(c_int64), c_void_p, POINTER(c_int64))),
    "shoal_safetensors_writer_close": (None, (c_void_p,)),
    "shoal_safetensors_writer_create": (c_int, (c_char_p, c_void_p, POINTER(c_void_p))),
    "shoal_safetensors_writer_finish": (c_int, (c_void_p,)),
    "shoal_safetensors_writer_join": (c_int, (c_char_p, c_void_p, POINTER(c_void_p))),
    "shoal_safetensors_writer_path": (c_char_p, (c_void_p,)),
    "shoal_scale_tensors": (c_int, (POINTER(c_void_p), c_size_t, c_double)),
    "shoal_scope_begin": (c_int, ()),
    "shoal_scope_end": (c_int, ()),
    "shoal_scope_error": (c_int, ()),
    "shoal_scope_fail": (c_int, (c_int,)),
    "shoal_scope_has_grad": (c_bool, ()),
    "shoal_scope_keep": (c_void_p, (c_void_p,)),
    "shoal_scope_set_grad": (c_int, (c_bool,)),
    "shoal_seconds": (c_double, ()),
    "shoal_select": (c_void_p, (c_void_p, c_int64, c_int64)),
    "shoal_set_grad": (c_int, (c_void_p, c_void_p)),
    "shoal_set_requires_grad": (c_int, (c_void_p, c_bool)),
    "shoal_slice": (c_void_p, (c_void_p, c_int64, c_int64, c_int64, c_int64)),
    "shoal_split_with_sizes": (POINTER(c_void_p), (c_void_p, POINTER(c_int64), c_size_t, c_int64, POINTER(c_size_t))),
    "shoal_status_message": (c_char_p, (c_int,)),
    "shoal_status_name": (c_char_p, (c_int,)),
    "shoal_status_reach": (c_int, (c_int,)),
    "shoal_store_add": (c_int, (c_void_p, c_char_p, c_int64, POINTER(c_int64))),
    "shoal_store_check": (c_int, (c_void_p, POINTER(c_char_p), c_size_t, POINTER(c_bool))),
    "shoal_store_compare_set": (c_int, (c_void_p, c_char_p, c_void_p, c_size_t, c_void_p, c_size_t, POINTER(c_bool))),
    "shoal_store_delete": (c_int, (c_void_p, c_char_p, POINTER(c_bool))),
    "shoal_store_get": (c_int, (c_void_p, c_char_p, c_void_p, c_size_t, c_double, POINTER(c_size_t))),
    "shoal_store_set": (c_int, (c_void_p, c_char_p, c_void_p, c_size_t)),
    "shoal_store_wait": (c_int, (c_void_p, POINTER(c_char_p), c_size_t, c_double)),
    "shoal_sub": (c_void_p, (c_void_p, c_void_p)),
    "shoal_sub_": (c_void_p, (c_void_p, c_void_p)),
    "shoal_sum": (c_void_p, (c_void_p, POINTER(c_int64), c_int, c_bool)),
    "shoal_symmetric_bytes": (c_size_t, (c_void_p,)),
    "shoal_symmetric_create": (c_int, (c_void_p, c_size_t, POINTER(c_void_p))),
    "shoal_symmetric_create_on": (c_int, (c_void_p, c_size_t, c_int, POINTER(c_void_p))),
    "shoal_symmetric_data": (c_void_p, (c_void_p,)),
    "shoal_symmetric_free": (None, (c_void_p,)),
    "shoal_symmetric_grow": (c_int, (c_void_p, c_void_p, c_size_t)),
    "shoal_symmetric_peer": (c_void_p, (c_void_p, c_int)),
    "shoal_symmetric_reserve": (c_int, (c_void_p, c_size_t, c_size_t, POINTER(c_void_p))),
    "shoal_symmetric_tensor": (c_void_p, (c_void_p, c_size_t, POINTER(c_int64), c_int, c_int)),
    "shoal_tensor_count": (c_int64, (c_void_p,)),
    "shoal_tensor_device": (c_int, (c_void_p,)),
    "shoal_tensor_dtype": (c_int, (c_void_p,)),
    "shoal_tensor_is_complete": (c_bool, (c_void_p,)),
    "shoal_tensor_is_contiguous": (c_bool, (c_void_p,)),
    "shoal_tensor_n_dims": (c_int, (c_void_p,)),
    "shoal_tensor_name": (c_char_p, (c_void_p,)),
    "shoal_tensor_offset": (c_int64, (c_void_p,)),
    "shoal_tensor_rebind_data": (c_int, (c_void_p, c_void_p, shoal_deleter, c_void_p)),
    "shoal_tensor_ref": (c_void_p, (c_void_p,)),
    "shoal_tensor_release_data": (c_int, (c_void_p,)),
    "shoal_tensor_set_name": (c_int, (c_void_p, c_char_p)),
    "shoal_tensor_shape": (POINTER(c_int64), (c_void_p,)),
    "shoal_tensor_shares_storage": (c_bool, (c_void_p, c_void_p)),
    "shoal_tensor_strides": (POINTER(c_int64), (c_void_p,)),
    "shoal_tensor_unref": (None, (c_void_p,)),
    "shoal_tensor_version": (c_uint64, (c_void_p,)),
    "shoal_to_device": (c_void_p, (c_void_p, c_int)),
    "shoal_to_dlpack": (c_int, (c_void_p, POINTER(c_void_p))),
    "shoal_to_dlpack_on": (c_int, (c_void_p, c_int64, POINTER(c_void_p))),
    "shoal_to_dtype": (c_void_p, (c_void_p, c_int)),
    "shoal_trace_begin": (None, (c_char_p,)),
    "shoal_trace_end": (None, ()),
    "shoal_trace_start": (c_int, (POINTER(shoal_trace_options),)),
    "shoal_trace_step": (None, (c_int64,)),
    "shoal_trace_stop": (c_int, ()),
    "shoal_transpose": (c_void_p, (c_void_p, c_int64, c_int64)),
    "shoal_update_parameters": (c_int, (c_int, POINTER(shoal_update), c_size_t)),
    "shoal_version": (c_char_p, ()),
    "shoal_view": (c_void_p, (c_void_p, POINTER(c_int64), c_int)),
    "shoal_view_dtype": (c_void_p, (c_void_p, c_int)),
    "shoal_wait": (c_int, (c_void_p,)),
    "shoal_window_bytes": (c_size_t, (c_void_p,)),
    "shoal_window_create": (c_int, (c_void_p, c_size_t, POINTER(c_void_p))),
    "shoal_window_create_on": (c_int, (c_void_p, c_size_t, c_int, POINTER(c_void_p))),
    "shoal_window_data": (c_void_p, (c_void_p,)),
    "shoal_window_free": (None, (c_void_p,)),
    "shoal_window_gather": (c_int, (c_void_p, POINTER(shoal_window_piece), c_size_t, c_uint64)),
    "shoal_window_gather_start": (c_int, (c_void_p, POINTER(shoal_window_piece), c_size_t, c_uint64, POINTER(c_void_p))),
    "shoal_window_release": (c_int, (c_void_p,)),
    "shoal_work_free": (None, (c_void_p,)),
    "shoal_work_on_done": (c_int, (c_void_p, shoal_done_function, c_void_p)),
    "shoal_work_test": (c_bool, (c_void_p,)),
    "shoal_work_wait": (c_int, (c_void_p, c_double)),
    "shoal_world_close": (c_int, (c_void_p,)),
    "shoal_world_dump": (c_int, (c_void_p, shoal_write_function, c_void_p)),
    "shoal_world_group": (c_void_p, (c_void_p,)),
    "shoal_world_n_ranks": (c_int, (c_void_p,)),
    "shoal_world_open": (c_int, (POINTER(shoal_world_options), POINTER(c_void_p))),
    "shoal_world_progress": (c_int, (c_void_p,)),
    "shoal_world_rank": (c_int, (c_void_p,)),
    "shoal_world_run_threads": (c_int, (c_int, shoal_rank_function, c_void_p)),
    "shoal_world_store": (c_void_p, (c_void_p,)),
    "shoal_write": (c_int, (c_void_p, c_void_p, c_size_t)),
    "shoal_zeros": (c_void_p, (POINTER(c_int64), c_int, c_int)),
}
