#!/bin/sh
# Stands for `tealight` in the examples of the documentation. Training ends after a step on two examples, an ablation is
# planned and one of a tiny model is trained in its place, and what takes long or waits is only parsed. Without $REALLY
# everything but `train` and `init` is only parsed.
set -eu
command=${1:-}

parse() {
    "$PROGRAM" "$@" --help >"$HOME/help"
}

# Runs the program. Models and data that the example downloads are not there; the error must say how to get them.
attempt() {
    if ! "$PROGRAM" "$@" >"$HOME/output" 2>"$HOME/errors"; then
        missing='hf download|scripts/fetch_|data/mnist/|data/cifar-10'
        if grep -q 'runs/' "$HOME/errors" || ! grep -qE "$missing" "$HOME/errors"; then
            cat "$HOME/errors" >&2
            exit 1
        fi
    fi
    cat "$HOME/output"
}

# Does what pages have in common for the first of them only.
once() {
    touch "$HOME/done"
    if ! grep -qxF -e "$*" "$HOME/done"; then
        "$@"
        echo "$*" >>"$HOME/done"
    fi
}

# Trains the run of a shipped configuration that an example uses and no example before it has trained.
train_if_used() {
    for run in "$@"; do
        name=${run#runs/}
        if [ "$run" != "$name" ] && [ ! -e "$run" ]; then
            for file in configs/*/"$name".toml; do
                [ ! -e "$file" ] || "$0" train "$file"
            done
        fi
    done
}

case "$command" in
train)
    resume='' stop=''
    shift
    for argument in "$@"; do
        case "$argument" in
        --resume) resume=yes ;;
        --stop-after) stop=yes ;;
        esac
    done
    # The other devices need another build.
    case " $* " in *" --device cuda "*) parse train "$@"; exit ;; esac
    if [ -z "$REALLY" ]; then
        case " $* " in
        *" CONFIG "* | *" --resume "*) parse train "$@" ;;
        *) once attempt train "$@" --dry-run ;;
        esac
    elif [ -n "$resume" ]; then
        attempt train "$@" -q --set training.batch_size=2 --set checkpoint.select=latest --stop-after 2
    elif [ -n "$stop" ]; then
        attempt train "$@" --dry-run
    else
        attempt train "$@" -q --set training.batch_size=2 --set checkpoint.select=latest --stop-after 1
    fi
    ;;
ablate)
    shift
    "$PROGRAM" ablate "$@" --dry-run >/dev/null
    if [ -n "$REALLY" ]; then
        name=$(basename "$1" .toml)
        "$PROGRAM" ablate tiny.toml --output "runs/ablations/$name" --vary model.n_heads=1,2 --seeds 1 -q
    fi
    ;;
serve | bench | verify-resume) parse "$@" ;;
init)
    # A model that an example downloads is not there.
    # shellcheck disable=SC2046
    case " $* " in *" --from sentence-transformers/"*) set -- $(echo "$*" | sed 's/--from [^ ]*//') ;; esac
    "$PROGRAM" "$@" --force 2>/dev/null || "$PROGRAM" "$@" ;;
explain | schema | info | completions) "$PROGRAM" "$@" ;;
*)
    if [ -n "$REALLY" ]; then
        train_if_used "$@"
        attempt "$@"
    else
        parse "$@"
    fi
    ;;
esac
