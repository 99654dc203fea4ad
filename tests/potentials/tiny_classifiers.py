"""Sequence classifiers with random weights, made in memory."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm


def tiny_classifier(vocab_size, labels=1, seed=0, context=64, double=False, **options):
    """A two-layer Llama with a head of some labels, which is not small next to 1."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        num_labels=labels,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **options,
    )
    torch.manual_seed(seed)
    model = LlamaForSequenceClassification(config)
    with torch.no_grad():
        model.score.weight.normal_(0, 0.3)
        model.get_input_embeddings().weight.normal_(0, 1)
    if double:  # Llama's own norm rounds to float32
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, LlamaRMSNorm):
                    norm = torch.nn.RMSNorm(32, eps=child.variance_epsilon)
                    setattr(module, name, norm)
        model = model.double()
    return model.eval()


@torch.no_grad()
def plain_logits(model, ids):
    """What transformers itself says of one sequence."""
    return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].double()


def tiny_bert(words, labels=2, seed=0):
    """A two-layer BERT and a tokenizer of whole words."""
    vocab = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", model_max_length=16,
    )  # fmt: skip
    config = BertConfig(
        vocab_size=len(vocab), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=32, max_position_embeddings=16, num_labels=labels,
        id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1},
    )  # fmt: skip
    torch.manual_seed(seed)
    model = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        model.classifier.weight.normal_(0, 1)
    return model, fast
