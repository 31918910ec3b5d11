#!/usr/bin/env bash
# data/enwik8.txt: the first 100,000,000 bytes of a 2006 Wikipedia dump, with its XML (Mahoney,
# http://mattmahoney.net/dc/textdata.html; CC BY-SA 3.0 and GFDL). The archive of 36 MB is removed afterwards.
# The usual split is 90 : 5 : 5 million bytes.
# shellcheck source=scripts/fetch.sh
source "$(dirname "${BASH_SOURCE[0]}")/fetch.sh"

text=data/enwik8.txt
# SHA-256 of the text; the page above gives its MD5 and SHA-1.
sum=2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8
if [[ -e $text ]]; then
    check "$text" "$sum"
    printf '%s is there\n' "$text"
    exit
fi
archive=data/enwik8.zip
fetch "$archive" 547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc \
    https://mattmahoney.net/dc/enwik8.zip
from_zip "$archive" enwik8 >"$text.part"
check "$text.part" "$sum"
mv "$text.part" "$text"
rm "$archive"
