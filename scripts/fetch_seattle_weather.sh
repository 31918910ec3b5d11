#!/usr/bin/env bash
# data/seattle_weather.txt: the weather of Seattle on the 1,461 days from 2012 to 2015, observed by NOAA (public domain),
# from the Python package vega-datasets. Sun is S, fog is C; rain, drizzle and snow are R.
# shellcheck source=scripts/fetch.sh
source "$(dirname "${BASH_SOURCE[0]}")/fetch.sh"

to=data/seattle_weather.txt
wheel=data/vega_datasets-0.9.0-py3-none-any.whl
if [[ ! -e $to ]]; then
    fetch "$wheel" 3d7c63917be6ca9b154b565f4779a31fedce57b01b5b9d99d8a34a7608062a1d \
        "https://files.pythonhosted.org/packages/e6/9f/ca52771fe972e0dcc5167fedb609940e01516066938ff2ee28b273ae4f29/vega_datasets-0.9.0-py3-none-any.whl"
    from_zip "$wheel" vega_datasets/_data/seattle-weather.csv |
        awk -F, 'NR > 1 { printf "%s", $6 ~ /^sun/ ? "S" : $6 ~ /^fog/ ? "C" : "R" } END { print "" }' >"$to.part"
    mv "$to.part" "$to"
    rm "$wheel"
fi
check "$to" db0a24eb1370322388091ce737e661d9706f4d5c2e6ddc4a4768541bbbf7d9bf
