#!/usr/bin/env bash
# data/mnist/: 70,000 handwritten digits of 28 x 28 pixels (LeCun, Cortes & Burges, http://yann.lecun.com/exdb/mnist/;
# CC BY-SA 3.0), 11 MB.
# shellcheck source=scripts/fetch.sh
source "$(dirname "${BASH_SOURCE[0]}")/fetch.sh"

while read -r name sum; do
    fetch "data/mnist/$name.gz" "$sum" \
        "https://storage.googleapis.com/cvdf-datasets/mnist/$name.gz" \
        "https://ossci-datasets.s3.amazonaws.com/mnist/$name.gz"
done <<'SUMS'
train-images-idx3-ubyte 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
train-labels-idx1-ubyte 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
t10k-images-idx3-ubyte 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
t10k-labels-idx1-ubyte f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
SUMS
