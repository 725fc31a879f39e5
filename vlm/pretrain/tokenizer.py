"""The tokenizer and the processor of the bundled checkpoints: byte-level BPE learnt on the world's own text.

Common words are one token, digits one token each. Special tokens and chat template are those of SmolVLM.
"""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, SmolVLMImageProcessor, SmolVLMProcessor, SmolVLMVideoProcessor

from mmspec.vlm.pretrain.architecture import IMAGE_SIZE, IMAGE_TOKENS, TokenIds

PADDING, START, END = "<|endoftext|>", "<|im_start|>", "<end_of_utterance>"
FAKE, GLOBAL, IMAGE = "<fake_token_around_image>", "<global-img>", "<image>"
SPECIAL = (PADDING, START, END, FAKE, GLOBAL, IMAGE)
CONTEXT = 2048

CHAT_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
PREFIX = f"{START}User:{FAKE}{GLOBAL}{IMAGE * IMAGE_TOKENS}{FAKE}"


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
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=END,
        pad_token=PADDING,
        padding_side="left",
        model_max_length=CONTEXT,
        extra_special_tokens={
            "image_token": IMAGE,
            "fake_image_token": FAKE,
            "global_image_token": GLOBAL,
            "end_of_utterance_token": END,
        },
    )


def build_processor(tokenizer: PreTrainedTokenizerFast) -> SmolVLMProcessor:
    """The stock processor: one tile of 160 pixels per image, no splitting."""
    edge = {"longest_edge": IMAGE_SIZE}
    images = SmolVLMImageProcessor(
        do_image_splitting=False, size=edge, max_image_size=edge, resample=3, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    videos = SmolVLMVideoProcessor(
        size=edge, max_image_size=edge, resample=3, image_mean=[0.5] * 3, image_std=[0.5] * 3, num_frames=8, fps=1
    )
    return SmolVLMProcessor(images, tokenizer, videos, image_seq_len=IMAGE_TOKENS, chat_template=CHAT_TEMPLATE)


def token_ids(tokenizer: PreTrainedTokenizerFast) -> TokenIds:
    """The ids that the model's configuration states."""
    image, start, end, padding = tokenizer.convert_tokens_to_ids([IMAGE, START, END, PADDING])
    return TokenIds(len(tokenizer), image, start, end, padding)
