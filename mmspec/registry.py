"""Names of targets, drafters, acceptance rules, recipes, commands and more, resolved to code on demand.

A table per kind maps "modality/name" to "package.module:attribute"; the modality "any" serves all of them. Strings
instead of classes: nothing is imported before it is asked for, and the core can name modality packages without
importing them. Other distributions add entries by entry points of the same form, in groups called `mmspec.KIND` after
the kinds of BUILTIN:

    [project.entry-points."mmspec.drafters"]
    "vlm/mine" = "my_package.drafter:Mine"
"""

import logging
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from mmspec.contract import Drafter, Rule
from mmspec.errors import UnsupportedError, unknown_name

logger = logging.getLogger(__name__)

ANY = "any"
BASES: dict[str, type] = {"drafters": Drafter, "rules": Rule}
"""What the classes of a kind derive from."""

BUILTIN: dict[str, dict[str, str]] = {
    "targets": {
        "any/causal-lm": "mmspec.causal_lm:CausalLM",
        "vlm/smolvlm": "mmspec.vlm.smolvlm:SmolVLM",
        "vlm/llava": "mmspec.vlm.llava:Llava",
        "vlm/llava-next": "mmspec.vlm.llava:LlavaNext",
        "vlm/pixtral": "mmspec.vlm.llava:Pixtral",
        "vlm/llava-onevision": "mmspec.vlm.llava:LlavaOnevision",
        "vlm/mistral3": "mmspec.vlm.llava:Mistral3",
        "vlm/lighton-ocr": "mmspec.vlm.llava:LightOnOcr",
        "vlm/internvl": "mmspec.vlm.tiles:InternVL",
        "vlm/aya-vision": "mmspec.vlm.tiles:AyaVision",
        "vlm/cohere2-vision": "mmspec.vlm.tiles:Cohere2Vision",
        "vlm/gemma3": "mmspec.vlm.gemma3:Gemma3",
        "vlm/gemma3n": "mmspec.vlm.gemma4:Gemma3n",
        "vlm/gemma4": "mmspec.vlm.gemma4:Gemma4",
        "vlm/gemma4-unified": "mmspec.vlm.gemma4:Gemma4Unified",
        "vlm/qwen2-vl": "mmspec.vlm.qwen_vl:Qwen2VL",
        "vlm/qwen2.5-vl": "mmspec.vlm.qwen_vl:Qwen25VL",
        "vlm/qwen3-vl": "mmspec.vlm.qwen_vl:Qwen3VL",
        "vlm/qwen3-vl-moe": "mmspec.vlm.qwen_vl:Qwen3VLMoe",
        "vlm/qwen3.5": "mmspec.vlm.qwen_vl:Qwen35",
        "vlm/qwen3.5-moe": "mmspec.vlm.qwen_vl:Qwen35Moe",
        "vlm/glm4v": "mmspec.vlm.qwen_vl:Glm4V",
        "vlm/glm4v-moe": "mmspec.vlm.qwen_vl:Glm4VMoe",
        "vlm/glm46v": "mmspec.vlm.qwen_vl:Glm46V",
        "vlm/glm-ocr": "mmspec.vlm.qwen_vl:GlmOcr",
        "vlm/paddleocr-vl": "mmspec.vlm.qwen_vl:PaddleOcrVL",
        "vlm/lfm2-vl": "mmspec.vlm.lfm2:Lfm2VL",
        "image/janus": "mmspec.image_ar.janus:Janus",
        "image/emu3": "mmspec.image_ar.emu3:Emu3",
        "image/llamagen": "mmspec.image_ar.llamagen:LlamaGenTarget",
        "image/chameleon": "mmspec.image_ar.chameleon:Chameleon",
        "image/lumina-mgpt": "mmspec.image_ar.chameleon:Lumina",
        "image/glm-image": "mmspec.image_ar.glm_image:GlmImage",
        "image/mar": "mmspec.image_ar.mar:MarTarget",
        "speech/valle": "mmspec.speech.valle_target:ValleTarget",
        "speech/llasa": "mmspec.speech.llasa:Llasa",
        "speech/csm": "mmspec.speech.csm:Csm",
        "speech/musicgen": "mmspec.speech.musicgen:Musicgen",
        "speech/dia": "mmspec.speech.dia:Dia",
        "speech/higgs-audio": "mmspec.speech.higgs:Higgs",
        "speech/whisper": "mmspec.speech.whisper:Whisper",
        "speech/voxtral": "mmspec.speech.voxtral:Voxtral",
        "speech/qwen2-audio": "mmspec.speech.qwen_audio:Qwen2Audio",
        "speech/qwen3-asr": "mmspec.speech.qwen_audio:Qwen3Asr",
        "speech/audio-flamingo-3": "mmspec.speech.audio_flamingo:AudioFlamingo3",
        "speech/glm-asr": "mmspec.speech.audio_flamingo:GlmAsr",
    },
    "drafters": {
        "any/none": "mmspec.drafters.none:NoDrafter",
        "any/prompt-lookup": "mmspec.drafters.prompt_lookup:PromptLookup",
        "any/spd": "mmspec.drafters.independent:Independent",
        "any/eagle": "mmspec.drafters.eagle:Eagle1",
        "any/eagle2": "mmspec.drafters.eagle:Eagle",
        "any/eagle3": "mmspec.drafters.eagle3:Eagle3",
        "any/hass": "mmspec.drafters.eagle:Hass",
        "any/medusa": "mmspec.drafters.medusa:Medusa",
        "any/hydra": "mmspec.drafters.hydra:Hydra",
        "any/hydra++": "mmspec.drafters.hydra:HydraPlus",
        "any/kangaroo": "mmspec.drafters.kangaroo:Kangaroo",
        "any/dflash": "mmspec.drafters.dflash:DFlash",
        "any/dspark": "mmspec.drafters.dspark:DSpark",
        "any/mtp": "mmspec.drafters.mtp:Mtp",
        "any/suffix": "mmspec.drafters.suffix:Suffix",
        "any/recycling": "mmspec.drafters.recycling:Recycling",
        "any/lookahead": "mmspec.drafters.lookahead:Lookahead",
        "any/retrieval": "mmspec.drafters.retrieval:Retrieval",
        "any/hybrid": "mmspec.drafters.hybrid:Hybrid",
        "vlm/small-vlm": "mmspec.vlm.small_vlm:SmallVLM",
        "vlm/msd": "mmspec.vlm.drafters.msd:Msd",
        "vlm/vispec": "mmspec.vlm.drafters.vispec:ViSpec",
        "vlm/dream": "mmspec.vlm.drafters.dream:Dream",
        "vlm/hivis": "mmspec.vlm.drafters.hivis:HiVis",
        "vlm/specvlm": "mmspec.vlm.drafters.specvlm:SpecVlm",
        "vlm/massv": "mmspec.vlm.drafters.grafted:Massv",
        "vlm/spec-llava": "mmspec.vlm.drafters.branching:SpecLlava",
        "vlm/ibed": "mmspec.vlm.drafters.ensemble:Ibed",
        "vlm/tabed": "mmspec.vlm.drafters.ensemble:Tabed",
        "speech/vadusa": "mmspec.speech.vadusa:Vadusa",
        "speech/mtp-viterbi": "mmspec.speech.viterbi:Viterbi",
        "speech/ssd": "mmspec.speech.ssd:SSD",
        "speech/depth": "mmspec.speech.depth:Depth",
        "speech/specasr": "mmspec.speech.specasr:SpecASR",
        "speech/small-musicgen": "mmspec.speech.small_musicgen:SmallMusicgen",
        "speech/small-dia": "mmspec.speech.dia:SmallDia",
        "speech/small-higgs": "mmspec.speech.higgs:SmallHiggs",
        "image/jacobi": "mmspec.image_ar.jacobi:Jacobi",
        "image/sjd": "mmspec.image_ar.jacobi:SJD",
        "image/scd-mc": "mmspec.image_ar.jacobi:MaximalCoupling",
        "image/scd-gs": "mmspec.image_ar.jacobi:GumbelSharing",
        "image/sjd-pac": "mmspec.image_ar.pac:Proactive",
        "image/mar": "mmspec.image_ar.mar_drafter:MarDrafter",
        "image/eagle": "mmspec.image_ar.eagle:GuidedEagle1",
        "image/eagle2": "mmspec.image_ar.eagle:GuidedEagle",
        "image/sjd-eagle": "mmspec.image_ar.eagle_window:EagleSharing",
    },
    "rules": {
        "any/exact": "mmspec.acceptance.exact:Exact",
        "any/match": "mmspec.acceptance.match:Match",
        "any/ratio": "mmspec.acceptance.ratio:Ratio",
        "any/block": "mmspec.acceptance.block:Block",
        "any/typical": "mmspec.acceptance.typical:Typical",
        "image/lantern": "mmspec.image_ar.lantern:Lantern",
        "image/lantern++": "mmspec.image_ar.lantern:LanternPlus",
        "image/gsd": "mmspec.image_ar.clusters:Grouped",
        "image/cool-sd": "mmspec.image_ar.clusters:CoolSD",
        "image/continuous": "mmspec.image_ar.continuous:Continuous",
        "image/continuous-conditioned": "mmspec.image_ar.continuous:Conditioned",
        "image/continuous-released": "mmspec.image_ar.continuous:Released",
        "speech/tolerance": "mmspec.speech.relaxed:Tolerance",
        "speech/top-k": "mmspec.speech.relaxed:TopK",
        "speech/max-ratio": "mmspec.speech.relaxed:MaxRatio",
        "speech/beta": "mmspec.speech.beta:Beta",
        "speech/pcg": "mmspec.speech.pcg:PCG",
        "speech/unverified": "mmspec.speech.unverified:Unverified",
        "speech/columns": "mmspec.speech.columns:Columns",
        "speech/columns-ratio": "mmspec.speech.columns:PerCode",
        "speech/columns-joint": "mmspec.speech.columns:Joint",
    },
    "configs": {
        "speech/mmspec-valle": "mmspec.speech.valle:ValleConfig",
        "image/mmspec-llamagen": "mmspec.image_ar.llamagen_model:LlamaGenConfig",
        "image/mmspec-mar": "mmspec.image_ar.mar_config:MarConfig",
    },
    "layouts": {
        "any/eagle": "mmspec.interchange.eagle:EagleLayout",
        "any/eagle3": "mmspec.interchange.eagle3:Eagle3Layout",
        "any/medusa": "mmspec.interchange.heads:MedusaLayout",
        "any/hydra": "mmspec.interchange.heads:HydraLayout",
        "any/kangaroo": "mmspec.interchange.kangaroo:KangarooLayout",
        "any/dflash": "mmspec.interchange.dflash:DFlashLayout",
        "vlm/msd": "mmspec.vlm.drafters.layouts:MsdLayout",
        "vlm/vispec": "mmspec.vlm.drafters.layouts:ViSpecLayout",
        "vlm/dream": "mmspec.vlm.drafters.layouts:DreamLayout",
    },
    "recipes": {
        "any/eagle": "mmspec.training.eagle:Eagle1Recipe",
        "any/eagle2": "mmspec.training.eagle:EagleRecipe",
        "any/hass": "mmspec.training.eagle:HassRecipe",
        "any/eagle3": "mmspec.training.eagle3:Eagle3Recipe",
        "any/medusa": "mmspec.training.medusa:MedusaRecipe",
        "any/hydra": "mmspec.training.medusa:HydraRecipe",
        "any/hydra++": "mmspec.training.medusa:HydraPlusRecipe",
        "any/kangaroo": "mmspec.training.kangaroo:KangarooRecipe",
        "any/dflash": "mmspec.training.dflash:DFlashRecipe",
        "any/dspark": "mmspec.training.dspark:DSparkRecipe",
        "any/spd": "mmspec.training.spd:SpdRecipe",
        "vlm/msd": "mmspec.vlm.drafters.recipes:MsdRecipe",
        "vlm/vispec": "mmspec.vlm.drafters.recipes:ViSpecRecipe",
        "vlm/dream": "mmspec.vlm.drafters.dream_recipe:DreamRecipe",
        "vlm/hivis": "mmspec.vlm.drafters.recipes:HiVisRecipe",
        "vlm/specvlm": "mmspec.vlm.drafters.specvlm_recipe:SpecVlmRecipe",
        "vlm/massv": "mmspec.vlm.drafters.grafted_recipe:MassvRecipe",
        "vlm/spec-llava": "mmspec.vlm.drafters.grafted_recipe:SpecLlavaRecipe",
        "vlm/ibed": "mmspec.vlm.drafters.grafted_recipe:IbedRecipe",
        "vlm/tabed": "mmspec.vlm.drafters.grafted_recipe:TabedRecipe",
        "speech/vadusa": "mmspec.speech.recipes:VadusaRecipe",
        "speech/vadusa-joint": "mmspec.speech.joint:JointRecipe",
        "speech/mtp-viterbi": "mmspec.speech.recipes:ViterbiRecipe",
        "speech/ssd": "mmspec.speech.recipes:SsdRecipe",
        "image/eagle": "mmspec.image_ar.recipes:GuidedEagle1Recipe",
        "image/eagle2": "mmspec.image_ar.recipes:GuidedEagleRecipe",
        "image/sjd-eagle": "mmspec.image_ar.recipes:EagleSharingRecipe",
    },
    "questions": {
        "any/miniworld": "mmspec.training.data:Miniworld",
        "image/miniworld": "mmspec.image_ar.recipes:Captions",
        "speech/miniworld": "mmspec.speech.recipes:Sentences",
    },
    "trainers": {
        "vlm/smolvlm-mini": "mmspec.vlm.pretrain.train:main",
        "vlm/llava-next-mini": "mmspec.vlm.pretrain.train:llava_next_mini",
        "vlm/pixtral-mini": "mmspec.vlm.pretrain.train:pixtral_mini",
        "vlm/gemma3-mini": "mmspec.vlm.pretrain.train:gemma3_mini",
        "image/janus-mini": "mmspec.image_ar.pretrain.train:main",
        "image/mar-mini": "mmspec.image_ar.pretrain.mar_train:main",
        "image/janus-reader": "mmspec.image_ar.pretrain.read:main",
        "speech/valle-mini": "mmspec.speech.pretrain.train:main",
        "speech/valle-listener": "mmspec.speech.pretrain.listener_training:main",
    },
    "judges": {
        "speech/listener": "mmspec.speech.judge:Judge",
        "image/reader": "mmspec.image_ar.judge:Judge",
    },
    "commands": {
        "any/train": "mmspec.training.cli:app",
        "any/bench": "mmspec.benchmarks.cli:app",
        "any/demo": "mmspec.demos.cli:app",
        "any/datastore": "mmspec.drafters.datastore_cli:app",
        "any/convert": "mmspec.interchange.cli:convert_app",
        "any/export": "mmspec.interchange.cli:export_app",
    },
}


@cache
def entries(kind: str) -> dict[str, str]:
    """All entries of a kind: {"modality/name": "module:attribute"}. The kinds are the keys of BUILTIN.

    A built-in name cannot be taken over: an entry point that tries to is left out, with a warning in the log.
    Raises: UnknownNameError: there is no such kind.
    """
    if kind not in BUILTIN:
        raise unknown_name("kind of name", kind, BUILTIN)
    table = dict(BUILTIN[kind])
    for point in entry_points(group=f"mmspec.{kind}"):
        key = point.name if "/" in point.name else f"{ANY}/{point.name}"
        if table.setdefault(key, point.value) != point.value:
            logger.warning("%s %r of %s is left out: %s has that name", kind, key, point.value, table[key])
    return table


def names(kind: str, modality: str | None = None) -> list[str]:
    """The names of a kind, sorted: those that serve `modality`, or all of them."""
    keys = (key.split("/", 1) for key in entries(kind))
    return sorted({name for serves, name in keys if modality is None or serves in (modality, ANY)})


def modalities(kind: str) -> dict[str, list[str]]:
    """The names of a kind, sorted, and for each the modalities that have it, sorted: {name: [modality, ..]}."""
    keys = [key.split("/", 1) for key in sorted(entries(kind))]
    return {name: [serves for serves, other in keys if other == name] for name in names(kind)}


def elsewhere(kind: str, name: object) -> str:
    """A remark on a name that one modality lacks: which ones have it. Empty if none does."""
    found = modalities(kind).get(str(name))
    return f"{str(name)!r} exists for: {', '.join(found)}" if found else ""


def resolve(kind: str, name: str, modality: str = ANY) -> object:
    """What `name` stands for in `modality`. Imports the module that holds it, and no other.

    Raises: UnknownNameError: no such name for this modality; the message suggests near ones.
        UnsupportedError: the name is registered, but its module cannot be imported or lacks the attribute, or what it
            stands for is not of its kind.
    """
    table = entries(kind)
    location = table.get(f"{modality}/{name}") or table.get(f"{ANY}/{name}")
    if location is None:
        raise unknown_name(kind.removesuffix("s"), name, names(kind, modality), elsewhere(kind, name))
    module, _, attribute = location.partition(":")
    what = f"{kind.removesuffix('s')} {name!r} is registered as {location!r}"
    try:
        found: object = getattr(import_module(module), attribute)
    except Exception as error:  # noqa: BLE001  others' modules may raise anything when they are imported
        raise UnsupportedError(f"{what}, which cannot be imported: {error}") from error
    base = BASES.get(kind)
    if base is not None and not (isinstance(found, type) and issubclass(found, base)):
        raise UnsupportedError(f"{what}, which does not derive from mmspec.contract.{base.__name__}")
    return found


def name_of(kind: str, thing: object, modality: str = ANY) -> str:
    """What a class, or that of an object, is called among those of a kind, first in `modality`; its own name where
    nobody registered it."""
    made = thing if isinstance(thing, type) else type(thing)
    place = f"{made.__module__}:{made.__qualname__}"
    found = {serves: name for serves, name in (key.split("/", 1) for key, at in entries(kind).items() if at == place)}
    return found.get(modality) or found.get(ANY) or next(iter(found.values()), made.__qualname__)


def importable(kind: str, keys: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Name and what it stands for, of each of the keys "modality/name".

    What another distribution registered and cannot be used is left out, with a warning in the log.
    """
    for key in keys:
        modality, _, name = key.partition("/")
        try:
            yield name, resolve(kind, name, modality)
        except UnsupportedError as error:
            if key in BUILTIN[kind]:
                raise
            logger.warning("left out: %s", error)


def list_drafters(modality: str | None = None) -> list[str]:
    """The names of the drafting methods, for one modality (text, vlm, image, speech) or for all. Some take files: pass
    `drafter=` their folder. Raises: UnknownNameError: no such modality."""
    served = {key.split("/")[0] for kind in ("targets", "drafters") for key in entries(kind)} - {ANY} | {"text"}
    if modality is not None and modality not in served:
        raise unknown_name("modality", modality, served)
    return names("drafters", modality)
