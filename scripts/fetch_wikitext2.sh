#!/usr/bin/env bash
# data/wikitext2/{train,valid,test}.txt: 13 MB of Wikipedia, split into words, with rare words as <unk> (Merity et
# al. 2016, https://arxiv.org/abs/1609.07843; CC BY-SA 3.0).
# shellcheck source=scripts/fetch.sh
source "$(dirname "${BASH_SOURCE[0]}")/fetch.sh"

base=https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2
while read -r split sum; do
    fetch "data/wikitext2/$split.txt" "$sum" "$base/$split.txt"
done <<'SUMS'
train 9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f
valid f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8
test d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0
SUMS
