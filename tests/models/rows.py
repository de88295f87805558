"""Public models' config.json with their exact numbers of parameters, and small made-up ones.

The numbers are those of the modules that transformers 5.24 builds from the configs: unique
parameters, a tied weight once, buffers not at all.
"""

import parallab as pl

# What decides the count, field by field.
# fmt: off
SIZES = {
    "Llama-2-7b": (dict(
        model_type="llama", mlp_bias=False, attention_bias=False, hidden_size=4096,
        num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32,
        intermediate_size=11008, vocab_size=32000, tie_word_embeddings=False,
    ), 6_738_415_616),
    "Llama-2-70b": (dict(
        model_type="llama", mlp_bias=False, attention_bias=False, hidden_size=8192,
        num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
        intermediate_size=28672, vocab_size=32000, tie_word_embeddings=False,
    ), 68_976_648_192),
    "Llama-3.1-8B": (dict(
        model_type="llama", mlp_bias=False, attention_bias=False, hidden_size=4096,
        num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        intermediate_size=14336, vocab_size=128256, tie_word_embeddings=False,
    ), 8_030_261_248),
    "Llama-3.1-70B": (dict(
        model_type="llama", mlp_bias=False, attention_bias=False, hidden_size=8192,
        num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
        intermediate_size=28672, vocab_size=128256, tie_word_embeddings=False,
    ), 70_553_706_496),
    "Llama-3.2-1B": (dict(
        model_type="llama", mlp_bias=False, attention_bias=False, hidden_size=2048,
        num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
        intermediate_size=8192, vocab_size=128256, tie_word_embeddings=True,
    ), 1_235_814_400),
    "Mistral-7B-v0.1": (dict(
        model_type="mistral", hidden_size=4096, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336,
        vocab_size=32000, sliding_window=4096, tie_word_embeddings=False,
    ), 7_241_732_096),
    "Mistral-7B-v0.3": (dict(
        model_type="mistral", hidden_size=4096, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336,
        vocab_size=32768, sliding_window=None, tie_word_embeddings=False,
    ), 7_248_023_552),
    "Mixtral-8x7B": (dict(
        model_type="mixtral", hidden_size=4096, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336,
        vocab_size=32000, num_local_experts=8, num_experts_per_tok=2,
        tie_word_embeddings=False,
    ), 46_702_792_704),
    "Qwen2.5-0.5B": (dict(
        model_type="qwen2", hidden_size=896, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, intermediate_size=4864, vocab_size=151936,
        tie_word_embeddings=True,
    ), 494_032_768),
    "Qwen2.5-1.5B": (dict(
        model_type="qwen2", hidden_size=1536, num_hidden_layers=28,
        num_attention_heads=12, num_key_value_heads=2, intermediate_size=8960,
        vocab_size=151936, tie_word_embeddings=True,
    ), 1_543_714_304),
    "Qwen2.5-7B": (dict(
        model_type="qwen2", hidden_size=3584, num_hidden_layers=28,
        num_attention_heads=28, num_key_value_heads=4, intermediate_size=18944,
        vocab_size=152064, tie_word_embeddings=False,
    ), 7_615_616_512),
    "Qwen2.5-72B": (dict(
        model_type="qwen2", hidden_size=8192, num_hidden_layers=80,
        num_attention_heads=64, num_key_value_heads=8, intermediate_size=29568,
        vocab_size=152064, tie_word_embeddings=False,
    ), 72_706_203_648),
    "Qwen3-0.6B": (dict(
        model_type="qwen3", hidden_size=1024, num_hidden_layers=28,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128,
        intermediate_size=3072, vocab_size=151936, tie_word_embeddings=True,
    ), 596_049_920),
    "Qwen3-4B": (dict(
        model_type="qwen3", hidden_size=2560, num_hidden_layers=36,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        intermediate_size=9728, vocab_size=151936, tie_word_embeddings=True,
    ), 4_022_468_096),
    "Qwen3-8B": (dict(
        model_type="qwen3", hidden_size=4096, num_hidden_layers=36,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        intermediate_size=12288, vocab_size=151936, tie_word_embeddings=False,
    ), 8_190_735_360),
    "Qwen3-32B": (dict(
        model_type="qwen3", hidden_size=5120, num_hidden_layers=64,
        num_attention_heads=64, num_key_value_heads=8, head_dim=128,
        intermediate_size=25600, vocab_size=151936, tie_word_embeddings=False,
    ), 32_762_123_264),
    "Qwen3-30B-A3B": (dict(
        model_type="qwen3_moe", hidden_size=2048, num_hidden_layers=48,
        num_attention_heads=32, num_key_value_heads=4, head_dim=128,
        intermediate_size=6144, moe_intermediate_size=768, num_experts=128,
        num_experts_per_tok=8, decoder_sparse_step=1, mlp_only_layers=[],
        vocab_size=151936, tie_word_embeddings=False,
    ), 30_532_122_624),
    "Gemma-2B": (dict(
        model_type="gemma", hidden_size=2048, num_hidden_layers=18, num_attention_heads=8,
        num_key_value_heads=1, head_dim=256, intermediate_size=16384, vocab_size=256000,
    ), 2_506_172_416),
    "Gemma-2-2B": (dict(
        model_type="gemma2", hidden_size=2304, num_hidden_layers=26,
        num_attention_heads=8, num_key_value_heads=4, head_dim=256,
        intermediate_size=9216, vocab_size=256000,
    ), 2_614_341_888),
    "Gemma-2-9B": (dict(
        model_type="gemma2", hidden_size=3584, num_hidden_layers=42,
        num_attention_heads=16, num_key_value_heads=8, head_dim=256,
        intermediate_size=14336, vocab_size=256000,
    ), 9_241_705_984),
    "Gemma-3-270M": (dict(
        model_type="gemma3_text", hidden_size=640, num_hidden_layers=18,
        num_attention_heads=4, num_key_value_heads=1, head_dim=256,
        intermediate_size=2048, vocab_size=262144,
    ), 268_098_176),
    "Gemma-3-4B text": (dict(
        model_type="gemma3_text", hidden_size=2560, num_hidden_layers=34,
        num_attention_heads=8, num_key_value_heads=4, head_dim=256,
        intermediate_size=10240, vocab_size=262208,
    ), 3_880_263_168),
    "Gemma-3-27B text": (dict(
        model_type="gemma3_text", hidden_size=5376, num_hidden_layers=62,
        num_attention_heads=32, num_key_value_heads=16, head_dim=128,
        intermediate_size=21504, vocab_size=262208,
    ), 27_009_346_304),
    "Phi-2": (dict(
        model_type="phi", hidden_size=2560, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=32, intermediate_size=10240, vocab_size=51200,
        tie_word_embeddings=False,
    ), 2_779_683_840),
    "Phi-3-mini": (dict(
        model_type="phi3", hidden_size=3072, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=32, intermediate_size=8192, vocab_size=32064,
        tie_word_embeddings=False, pad_token_id=32000,
    ), 3_821_079_552),
    "GPT-2": (dict(
        model_type="gpt2", n_embd=768, n_layer=12, n_head=12, n_positions=1024,
        vocab_size=50257,
    ), 124_439_808),
    "GPT-2-medium": (dict(
        model_type="gpt2", n_embd=1024, n_layer=24, n_head=16, n_positions=1024,
        vocab_size=50257,
    ), 354_823_168),
    "GPT-2-xl": (dict(
        model_type="gpt2", n_embd=1600, n_layer=48, n_head=25, n_positions=1024,
        vocab_size=50257,
    ), 1_557_611_200),
    "Falcon-7B": (dict(
        model_type="falcon", hidden_size=4544, num_hidden_layers=32,
        num_attention_heads=71, multi_query=True, parallel_attn=True,
        new_decoder_architecture=False, bias=False, vocab_size=65024,
    ), 6_921_720_704),
    "DeepSeek-V2-Lite": (dict(
        model_type="deepseek_v2", hidden_size=2048, num_hidden_layers=27,
        num_attention_heads=16, num_key_value_heads=16, intermediate_size=10944,
        moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2,
        num_experts_per_tok=6, first_k_dense_replace=1, moe_layer_freq=1,
        q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64,
        v_head_dim=128, vocab_size=102400, tie_word_embeddings=False, n_group=1,
        topk_group=1, topk_method="greedy",
    ), 15_706_484_224),
}

# As the files are, with much that does not decide it.
FILES = {
    "Llama-3.2-3B": (dict(
        model_type="llama", attention_bias=False, head_dim=128, hidden_act="silu",
        hidden_size=3072, intermediate_size=8192, max_position_embeddings=131072,
        mlp_bias=False, num_attention_heads=24, num_hidden_layers=28,
        num_key_value_heads=8, rms_norm_eps=1e-05, rope_scaling={"factor": 32.0,
        "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        rope_theta=500000.0, tie_word_embeddings=True, vocab_size=128256,
    ), 3_212_749_824),
    "Mistral-Nemo": (dict(
        model_type="mistral", head_dim=128, hidden_act="silu", hidden_size=5120,
        intermediate_size=14336, max_position_embeddings=1024000, num_attention_heads=32,
        num_hidden_layers=40, num_key_value_heads=8, rms_norm_eps=1e-05,
        rope_theta=1000000.0, sliding_window=None, tie_word_embeddings=False,
        vocab_size=131072,
    ), 12_247_782_400),
    "Mixtral-8x22B": (dict(
        model_type="mixtral", hidden_act="silu", hidden_size=6144,
        intermediate_size=16384, max_position_embeddings=65536, num_attention_heads=48,
        num_experts_per_tok=2, num_hidden_layers=56, num_key_value_heads=8,
        num_local_experts=8, rms_norm_eps=1e-05, rope_theta=1000000, sliding_window=None,
        tie_word_embeddings=False, vocab_size=32000,
    ), 140_620_634_112),
    "Qwen2-0.5B": (dict(
        model_type="qwen2", hidden_act="silu", hidden_size=896, intermediate_size=4864,
        max_position_embeddings=131072, max_window_layers=24, num_attention_heads=14,
        num_hidden_layers=24, num_key_value_heads=2, rms_norm_eps=1e-06,
        rope_theta=1000000.0, sliding_window=131072, tie_word_embeddings=True,
        use_sliding_window=False, vocab_size=151936,
    ), 494_032_768),
    "Qwen3-235B-A22B": (dict(
        model_type="qwen3_moe", attention_bias=False, decoder_sparse_step=1, head_dim=128,
        hidden_act="silu", hidden_size=4096, intermediate_size=12288,
        max_position_embeddings=40960, max_window_layers=94, mlp_only_layers=[],
        moe_intermediate_size=1536, norm_topk_prob=True, num_attention_heads=64,
        num_experts=128, num_experts_per_tok=8, num_hidden_layers=94,
        num_key_value_heads=4, rms_norm_eps=1e-06, rope_scaling=None,
        rope_theta=1000000.0, sliding_window=None, tie_word_embeddings=False,
        use_sliding_window=False, vocab_size=151936,
    ), 235_093_634_560),
    "phi-1_5": (dict(
        model_type="phi", hidden_act="gelu_new", hidden_size=2048, intermediate_size=8192,
        layer_norm_eps=1e-05, max_position_embeddings=2048, num_attention_heads=32,
        num_hidden_layers=24, num_key_value_heads=None, partial_rotary_factor=0.5,
        qk_layernorm=False, rope_theta=10000.0, tie_word_embeddings=False,
        vocab_size=51200,
    ), 1_418_270_720),
    "Phi-3-medium": (dict(
        model_type="phi3", hidden_act="silu", hidden_size=5120, intermediate_size=17920,
        max_position_embeddings=4096, num_attention_heads=40, num_hidden_layers=40,
        num_key_value_heads=10, rms_norm_eps=1e-05, rope_scaling=None, rope_theta=10000.0,
        sliding_window=2047, tie_word_embeddings=False, vocab_size=32064,
    ), 13_960_238_080),
    "Phi-4-mini": (dict(
        model_type="phi3", attention_bias=False, hidden_act="silu", hidden_size=3072,
        intermediate_size=8192, max_position_embeddings=131072, num_attention_heads=24,
        num_hidden_layers=32, num_key_value_heads=8, partial_rotary_factor=0.75,
        rms_norm_eps=1e-05, rope_theta=10000.0, tie_word_embeddings=True,
        vocab_size=200064, pad_token_id=199999,
    ), 3_836_021_760),
    "gpt2-large": (dict(
        model_type="gpt2", n_embd=1280, n_layer=36, n_head=20, n_positions=1024,
        n_ctx=1024, vocab_size=50257, activation_function="gelu_new",
        layer_norm_epsilon=1e-05,
    ), 774_030_080),
    "falcon-40b": (dict(
        model_type="falcon", alibi=False, bias=False, hidden_size=8192,
        layer_norm_epsilon=1e-05, multi_query=True, new_decoder_architecture=True,
        num_attention_heads=128, num_hidden_layers=60, num_kv_heads=8, parallel_attn=True,
        vocab_size=65024,
    ), 41_303_293_952),
    "falcon-180b": (dict(
        model_type="falcon", alibi=False, bias=False, hidden_size=14848, multi_query=True,
        new_decoder_architecture=True, num_attention_heads=232, num_hidden_layers=80,
        num_kv_heads=8, parallel_attn=True, vocab_size=65024,
    ), 178_557_088_768),
    "falcon-rw-1b": (dict(
        model_type="falcon", alibi=True, bias=True, hidden_size=2048, multi_query=False,
        new_decoder_architecture=False, num_attention_heads=32, num_hidden_layers=24,
        parallel_attn=False, vocab_size=50304,
    ), 1_311_625_216),
    "falcon-11b": (dict(
        model_type="falcon", alibi=False, bias=False, hidden_size=4096, ff_factor=4,
        ffn_hidden_size=16384, multi_query=True, new_decoder_architecture=True,
        num_attention_heads=32, num_hidden_layers=60, num_kv_heads=8,
        num_ln_in_parallel_attn=1, parallel_attn=True, tie_word_embeddings=False,
        vocab_size=65024, max_position_embeddings=8192, rope_theta=500042.0,
    ), 11_102_822_400),
    "DeepSeek-V2": (dict(
        model_type="deepseek_v2", attention_bias=False, first_k_dense_replace=1,
        hidden_act="silu", hidden_size=5120, intermediate_size=12288, kv_lora_rank=512,
        max_position_embeddings=163840, moe_intermediate_size=1536, moe_layer_freq=1,
        n_group=8, n_routed_experts=160, n_shared_experts=2, num_attention_heads=128,
        num_experts_per_tok=6, num_hidden_layers=60, num_key_value_heads=128,
        q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, rms_norm_eps=1e-06,
        rope_scaling={"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
        "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type":
        "yarn"}, rope_theta=10000, tie_word_embeddings=False, topk_group=3,
        topk_method="group_limited_greedy", v_head_dim=128, vocab_size=102400,
    ), 235_741_434_880),
    "DeepSeek-V3": (dict(
        model_type="deepseek_v3", attention_bias=False, first_k_dense_replace=3,
        hidden_act="silu", hidden_size=7168, intermediate_size=18432, kv_lora_rank=512,
        max_position_embeddings=163840, moe_intermediate_size=2048, moe_layer_freq=1,
        n_group=8, n_routed_experts=256, n_shared_experts=1, num_attention_heads=128,
        num_experts_per_tok=8, num_hidden_layers=61, num_key_value_heads=128,
        num_nextn_predict_layers=1, q_lora_rank=1536, qk_nope_head_dim=128,
        qk_rope_head_dim=64, rms_norm_eps=1e-06, rope_theta=10000,
        tie_word_embeddings=False, topk_group=4, topk_method="noaux_tc", v_head_dim=128,
        vocab_size=129280,
    ), 671_026_404_352),
    "gemma-7b": (dict(
        model_type="gemma", attention_bias=False, head_dim=256, hidden_act="gelu",
        hidden_activation=None, hidden_size=3072, intermediate_size=24576,
        max_position_embeddings=8192, num_attention_heads=16, num_hidden_layers=28,
        num_key_value_heads=16, rms_norm_eps=1e-06, rope_theta=10000.0, vocab_size=256000,
    ), 8_537_680_896),
    "gemma-2-27b": (dict(
        model_type="gemma2", attention_bias=False, head_dim=128,
        hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh",
        hidden_size=4608, intermediate_size=36864, max_position_embeddings=8192,
        num_attention_heads=32, num_hidden_layers=46, num_key_value_heads=16,
        rms_norm_eps=1e-06, rope_theta=10000.0, sliding_window=4096, vocab_size=256000,
    ), 27_227_128_320),
    "gemma-3-1b": (dict(
        model_type="gemma3_text", attention_bias=False, head_dim=256,
        hidden_activation="gelu_pytorch_tanh", hidden_size=1152, intermediate_size=6912,
        max_position_embeddings=32768, num_attention_heads=4, num_hidden_layers=26,
        num_key_value_heads=1, rms_norm_eps=1e-06, rope_local_base_freq=10000,
        rope_scaling=None, rope_theta=1000000, sliding_window=512,
        sliding_window_pattern=6, vocab_size=262144,
    ), 999_885_952),
    "Qwen3-1.7B": (dict(
        model_type="qwen3", attention_bias=False, head_dim=128, hidden_act="silu",
        hidden_size=2048, intermediate_size=6144, max_position_embeddings=40960,
        max_window_layers=28, num_attention_heads=16, num_hidden_layers=28,
        num_key_value_heads=8, rms_norm_eps=1e-06, rope_scaling=None, rope_theta=1000000,
        sliding_window=None, tie_word_embeddings=True, use_sliding_window=False,
        vocab_size=151936,
    ), 1_720_574_976),
}
# fmt: on
PUBLIC = {**SIZES, **FILES}

# Small, of several families.
LLAMA = dict(
    model_type="llama", hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=96, vocab_size=100,
)  # fmt: skip
QWEN3_MOE = dict(
    LLAMA, model_type="qwen3_moe", num_key_value_heads=2, head_dim=32, num_experts=8,
    num_experts_per_tok=2, moe_intermediate_size=16,
)  # fmt: skip
DEEPSEEK = dict(
    LLAMA, model_type="deepseek_v2", n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3,
    moe_intermediate_size=16, q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=16,
    qk_rope_head_dim=8, v_head_dim=12, first_k_dense_replace=1,
)  # fmt: skip
GPT2 = dict(model_type="gpt2", n_embd=64, n_layer=2, n_head=4, n_positions=32, vocab_size=100)
FALCON = dict(
    model_type="falcon", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=100
)
GEMMA3_4B = dict(
    model_type="gemma3",
    architectures=["Gemma3ForConditionalGeneration"],
    mm_tokens_per_image=256,
    text_config=dict(
        model_type="gemma3_text", hidden_size=2560, intermediate_size=10240, num_hidden_layers=34,
        rope_scaling={"factor": 8.0, "rope_type": "linear"}, sliding_window=1024,
    ),
    vision_config=dict(hidden_size=1152, num_hidden_layers=27, model_type="siglip_vision_model"),
)  # fmt: skip
# A mixture by Model's own sizes.
MIXTURE = dict(layers=4, hidden=32, heads=4, ffn=64, vocab=100, experts=8, experts_per_token=2,
               expert_ffn=16)  # fmt: skip


def read(config, **changes):
    """The model of a config with some fields changed."""
    return pl.Model.from_config({**config, **changes})


def without(config, *fields):
    """A config that lacks some fields."""
    return {name: value for name, value in config.items() if name not in fields}
