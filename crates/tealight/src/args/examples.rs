//! The examples at the end of `--help` of commands with few arguments of their own. Others have theirs beside the arguments.

pub(super) const TRAIN: &str = "\
Examples:
  tealight train config.toml                                        a new run, runs/config
  tealight train weather/dotmod --set model.attention.kind=linear   a shipped configuration with another attention
  tealight train config.toml --resume                               the last run of the file goes on
  tealight train runs/config --steps 500                            a new run that begins with the parameters of a run";

pub(super) const DOCTOR: &str = "\
Examples:
  tealight doctor config.toml
  tealight doctor weather/dotmod --set model.n_layers=12 --json";

pub(super) const CHECKPOINT: &str = "\
Examples:
  tealight checkpoint ls runs/diary
  tealight checkpoint verify runs/diary                    compares all bytes with their digests
  tealight checkpoint average runs/diary --last 3 --to averaged";

pub(super) const LS: &str = "\
Examples:
  tealight checkpoint ls runs/diary
  tealight checkpoint ls runs/diary --json";

pub(super) const VERIFY: &str = "\
Examples:
  tealight checkpoint verify runs/diary";

pub(super) const PRUNE: &str = "\
Examples:
  tealight checkpoint prune runs/diary                     keeps the latest and the best
  tealight checkpoint prune runs/diary --keep 3";

pub(super) const AVERAGE: &str = "\
Examples:
  tealight checkpoint average runs/diary --last 3 --to averaged
  tealight checkpoint average runs/diary --steps 500,1000 --to averaged";

pub(super) const VERIFY_RESUME: &str = "\
Examples:
  tealight verify-resume config.toml --set training.steps=60 --kills 3";

pub(super) const BENCH: &str = "\
Examples:
  tealight bench attention --backward
  tealight bench train weather/dotmod --steps 50
  tealight bench product";

pub(super) const BENCH_PRODUCT: &str = "\
Examples:
  tealight bench product
  tealight bench product --shapes 4096x256x1024 --precision bf16 --threads 1";

pub(super) const BENCH_FILL_MASK: &str = "\
Examples:
  tealight bench fill-mask runs/diary \"It was [MASK] in Oslo.\"
  tealight bench fill-mask bert-base-uncased \"Oslo is the [MASK] of Norway.\" --precision bf16";

pub(super) const BENCH_EMBED: &str = "\
Examples:
  tealight bench embed all-MiniLM-L6-v2 --file texts.txt";

pub(super) const FORECAST: &str = "\
Examples:
  tealight forecast runs/dotmod --start 🌧️☁️☀️ --days 7
  tealight forecast runs/dotmod --start RCS --beams 5";

pub(super) const PLOT: &str = "\
Examples:
  tealight plot runs/dotmod
  tealight plot runs/dotmod runs/dotmod-2 --mean --output charts";

pub(super) const TRANSLATE: &str = "\
Examples:
  tealight translate runs/dates \"March 3rd, 2021\"
  tealight translate runs/dates - --beams 4 < dates.txt    a text on each line of standard input";

pub(super) const TOKENIZER: &str = "\
Examples:
  tealight tokenizer train books/*.txt --kind bpe --vocab-size 8000 --output tokenizer.json
  tealight tokenizer encode runs/diary \"It was sunny.\"";

pub(super) const ENCODE: &str = "\
Examples:
  tealight tokenizer encode runs/diary \"It was sunny.\"
  tealight tokenizer encode tokenizer.json \"The sun [MASK].\" --json";

pub(super) const DECODE: &str = "\
Examples:
  tealight tokenizer decode tokenizer.json 2 96 4 3";

pub(super) const EXPORT: &str = "\
Examples:
  tealight export runs/reviews --to folder                 for transformers where it has a class for the model
  tealight export runs/reviews --to folder --format onnx   for onnxruntime and transformers.js";

pub(super) const DEVICES: &str = "\
Examples:
  tealight devices
  tealight devices --json";

pub(super) const INFO: &str = "\
Examples:
  tealight info
  tealight info --json";

pub(super) const INSPECT: &str = "\
Examples:
  tealight inspect config.toml                  parameters and cost of a configuration
  tealight inspect runs/dotmod
  tealight inspect bert-base-uncased            a folder, or a name in the cache of Hugging Face
  tealight inspect --list                       all kinds";

pub(super) const SCHEMA: &str = "\
Examples:
  tealight schema > tealight.schema.json        then, as the first line of a file: #:schema tealight.schema.json";

pub(super) const COMPLETIONS: &str = "\
Examples:
  tealight completions bash > ~/.local/share/bash-completion/completions/tealight
  tealight completions fish > ~/.config/fish/completions/tealight.fish";

pub(super) const MAN: &str = "\
Examples:
  tealight man ~/.local/share/man/man1";
