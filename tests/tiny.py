"""Random tiny models of real architectures, and a tokenizer and embedder to go with them."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from trueline.engines.transformers.cache import share_heads
from trueline.engines.transformers.model import LanguageModel

CHAT = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
TEXTS = [
    "Answer the following question with one or two sentences.\nQ: What is true?\nA: It is not.",
    "No, the sky is blue because air scatters short waves of light more than long ones.",
    "Water boils at a lower temperature on a mountain, since the air presses less there.",
    "Bats are not blind; they see well, and most of them also hear their way in the dark.",
    "Is it true that gold rusts? Gold does not rust. Do fish sleep? Fish rest, eyes open.",
]
FACTS = [
    ("Is the sky blue because of the sea?", ["No, air scatters blue light.", "It is the air."]),
    ("Are bats blind?", ["Bats are not blind.", "No, bats see well in the dark."]),
    ("Does gold rust?", ["Gold does not rust.", "No, it does not rust in air or water."]),
    ("Do fish sleep?", ["Fish rest with open eyes.", "Yes, fish rest."]),
]
WRONG = [
    ["The sea paints the sky blue.", "Yes, it is the sea."],
    ["Bats are blind.", "Yes, no bat can see."],
    ["Gold rusts in water.", "Yes, gold does rust."],
    ["Fish never rest.", "No, fish do not sleep."],
]
QUESTIONS = [
    "Is the sea blue?",
    "Are owls blind in the light of day, or do they see well?",
    "Does water boil on a mountain?",
    "Do bats sleep?",
    "Is air gold?",
]

_SMALL = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=512,
    initializer_range=0.3,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
ARCHITECTURES = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "mistral": ("Mistral", {"sliding_window": 16}),
    "gemma2": ("Gemma2", {"final_logit_softcapping": 3.0, "sliding_window": 16}),
    "gemma3": ("Gemma3", {"sliding_window": 16, "tie_word_embeddings": False}),
    "gpt2": ("GPT2", {}),
    "phi": ("Phi", {"num_key_value_heads": 4}),
    "cohere": ("Cohere", {"logit_scale": 0.25, "tie_word_embeddings": False}),
    "granite": ("Granite", {"logits_scaling": 4.0}),
}

MAIN = ("llama", "gemma2", "gpt2")  # what the quick tests look at, where all would take long


def mostly_slow(names):
    """Architectures as parameters: the quick tests leave some of them to the others."""
    return [
        pytest.param(name, marks=() if name in MAIN else pytest.mark.slow) for name in names
    ]


@cache
def tokenizer(chat: bool = False) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        [*TEXTS, *(text for question, answers in FACTS for text in [question, *answers])],
        trainers.BpeTrainer(
            vocab_size=420,
            special_tokens=["<pad>", "<bos>", "<eos>", "<|start|>", "<|end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    core.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    made.chat_template = CHAT if chat else None
    return made


@cache
def language_model(
    architecture: str, *, chat: bool = False, seed: int = 0, positions: int = 512, **size: int
) -> LanguageModel:
    name, extra = ARCHITECTURES[architecture]
    words = tokenizer(chat)
    prefix = {"Gemma3": "Gemma3Text", "GPT2": "GPT2"}.get(name, name)
    settings = {
        **_SMALL,
        "vocab_size": len(words),
        "max_position_embeddings": positions,
        **extra,
        **size,
    }
    if name == "GPT2":
        settings = dict(
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=512,
            initializer_range=0.3,
            vocab_size=len(words),
            bos_token_id=1,
            eos_token_id=2,
            tie_word_embeddings=False,
        )
    config = getattr(transformers, f"{prefix}Config")(**settings)
    head = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}{head}")(config)
    if name == "Phi":  # a bias of zero would hide that the fused bias is counted twice
        torch.nn.init.normal_(model.lm_head.bias)
    share_heads(model)
    return LanguageModel(model.eval(), words, id=f"tiny-{architecture}")


def wrapped(name: str, **extra: object) -> LanguageModel:
    """A tiny model of any architecture of transformers, with settings of its own."""
    words = tokenizer()
    config = getattr(transformers, f"{name}Config")(
        **{**_SMALL, "vocab_size": len(words), **extra}
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    share_heads(model)
    return LanguageModel(model.eval(), words, id=f"tiny-{name.lower()}")


def write_embedder(folder: Path, *, seed: int = 0) -> Path:
    """A random BERT in the folder layout of sentence-transformers."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = sorted(set(" ".join(TEXTS).lower().replace(".", " . ").replace(",", " , ").split()))
    signs = sorted(set("".join(words)))
    known = dict.fromkeys([*special, *words, *signs, *(f"##{sign}" for sign in signs)])
    vocabulary = {word: number for number, word in enumerate(known)}  # a trainer would vary it
    core = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=core.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        initializer_range=0.4,
    )
    transformers.BertModel(config).save_pretrained(folder)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds)
    ]
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    for path, content in [
        ("modules.json", modules),
        ("1_Pooling/config.json", pooling),
        ("sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": False}),
    ]:
        (folder / path).write_text(json.dumps(content))
    return folder


def write_gguf(path, *, kind="llama", change=lambda name, weight: weight, size=(), **settings):
    """The tiny llama as a GGUF file, with its tokenizer; `change` sees every weight.

    What it makes of bytes is written as blocks of Q4_K.
    """
    from gguf import GGMLQuantizationType, GGUFWriter

    lm = language_model("llama", chat=True, **dict(size))
    config, backend = lm.model.config, json.loads(lm.tokenizer.backend_tokenizer.to_str())
    writer = GGUFWriter(path, kind)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(settings.get("context_length", config.max_position_embeddings))
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    vocabulary = backend["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.get)
    special = {token["id"] for token in backend["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([_GGUF_NAMES.get(word, word) for word in words])
    writer.add_token_types([3 if token in special else 1 for token in range(len(words))])
    writer.add_token_merges([" ".join(pair) for pair in backend["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    named = CHAT.replace("<|start|>", "<|open|>").replace("<|end|>", "<|close|>")
    writer.add_chat_template(named)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, weight in lm.model.state_dict().items():
        for ours, theirs in _GGUF_NAMES.items():
            name = name.replace(ours, theirs)
        weight = change(name, weight.numpy())
        if weight.dtype == np.uint8:
            writer.add_tensor(name, weight, raw_dtype=GGMLQuantizationType.Q4_K)
            continue
        if count := heads.get(name.split(".")[-2]):  # llama.cpp turns pairs that lie together
            weight = weight.reshape(count, 2, -1, weight.shape[1]).swapaxes(1, 2)
        writer.add_tensor(name, weight.reshape(-1, weight.shape[-1]).squeeze().copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def packed(name, weight):
    """Blocks of Q4_K at random in place of a matrix: what it says matters to no test."""
    if weight.ndim < 2 or name == "token_embd.weight":
        return weight
    random = np.random.default_rng(sum(name.encode()))
    blocks = random.integers(0, 256, (weight.size // 256, 144), dtype=np.uint8)
    scales = np.array([0.0003, 0.0023], np.float16)  # of the weights, and of their offsets
    blocks[:, :4] = scales.view(np.uint8)
    return blocks.reshape(len(weight), -1)


_GGUF_NAMES = {
    "<|start|>": "<|open|>",  # by its name alone, llama.cpp takes it for a part of the text
    "<|end|>": "<|close|>",  # and this for one that ends it
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
}
