#!/usr/bin/env bash
# data/wikitext103/{train,valid,test}.txt: 540 MB of Wikipedia, with all words (the raw version; Merity et
# al. 2016, https://arxiv.org/abs/1609.07843; CC BY-SA 3.0). The archive of 192 MB is removed afterwards.
# shellcheck source=scripts/fetch.sh
source "$(dirname "${BASH_SOURCE[0]}")/fetch.sh"

folder=data/wikitext103
if [[ -e $folder/train.txt && -e $folder/valid.txt && -e $folder/test.txt ]]; then
    printf '%s is there\n' "$folder"
    exit
fi
archive=$folder/wikitext-103-raw-v1.zip
fetch "$archive" 91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794 \
    https://wikitext.smerity.com/wikitext-103-raw-v1.zip \
    https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-raw-v1.zip
for split in train valid test; do
    from_zip "$archive" "wikitext-103-raw/wiki.$split.raw" >"$folder/$split.part"
    mv "$folder/$split.part" "$folder/$split.txt"
done
rm "$archive"
