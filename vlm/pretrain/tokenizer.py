"""The tokenizer of the bundled checkpoints: byte-level BPE learnt on the world's own text.

Common words are one token, digits one token each. Special tokens and chat template are those of SmolVLM; other families
add theirs.
"""

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mmspec.vlm.pretrain.architecture import CONTEXT, TokenIds

PADDING, START, END = "<|endoftext|>", "<|im_start|>", "<end_of_utterance>"
FAKE, GLOBAL, IMAGE = "<fake_token_around_image>", "<global-img>", "<image>"
SPECIAL = (PADDING, START, END, FAKE, GLOBAL, IMAGE)
TOKENS = {"image_token": IMAGE, "fake_image_token": FAKE, "global_image_token": GLOBAL}
"""The names that SmolVLM's processor asks for."""

CHAT_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def chat_template(picture: str) -> str:
    """The same conversation with another mark for a picture."""
    return CHAT_TEMPLATE.replace(IMAGE, picture)


def question_text(question: str) -> str:
    """What the template puts behind the image, up to where the answer begins."""
    return f"{question}{END}\nAssistant:"


def answer_text(answer: str) -> str:
    """What the model is to say."""
    return f" {answer}{END}"


def train_tokenizer(texts: Iterable[str], vocabulary: int = 2048) -> PreTrainedTokenizerFast:
    """Learns at most `vocabulary` tokens, special ones included, from `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _wrapped(tokenizer, TOKENS)


def with_tokens(tokenizer: PreTrainedTokenizerFast, special: dict[str, str]) -> PreTrainedTokenizerFast:
    """The same words under the same ids, and behind them what is new of a family's special tokens.

    Args: special: their texts by the names that the family's processor asks for, {"image_token": "[IMG]"}.
    """
    words = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    words.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special.values()])
    return _wrapped(words, special)


def _wrapped(tokenizer: Tokenizer, special: dict[str, str]) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=END,
        pad_token=PADDING,
        padding_side="left",
        model_max_length=CONTEXT,
        extra_special_tokens={**special, "end_of_utterance_token": END},
    )


def token_ids(tokenizer: PreTrainedTokenizerFast) -> TokenIds:
    """The ids that the model's configuration states."""
    image, start, end, padding = tokenizer.convert_tokens_to_ids([tokenizer.image_token, START, END, PADDING])
    begin = getattr(tokenizer, "boi_token_id", None)
    around = None if begin is None else (begin, tokenizer.eoi_token_id)
    return TokenIds(len(tokenizer), image, start, end, padding, around)
