#!/usr/bin/env bash
# data/cifar-10-batches-bin/: 60,000 pictures of 32 x 32 pixels in ten classes (Krizhevsky 2009,
# https://www.cs.toronto.edu/~kriz/cifar.html), 170 MB.
# shellcheck source=scripts/fetch.sh
source "$(dirname "${BASH_SOURCE[0]}")/fetch.sh"

archive=data/cifar-10-binary.tar.gz
fetch "$archive" c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd \
    https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz
tar -xzf "$archive" -C data
