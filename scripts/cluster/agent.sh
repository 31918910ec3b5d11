#!/usr/bin/env bash
# Starts a command on a "node" of network.py, in place of ssh: agent.sh [OPTIONS] 10.77.0.NUMBER COMMAND
while [[ $1 == -* ]]; do shift; done
node=tealight${1##*.}
shift
exec ip netns exec "$node" unshare --uts bash -c "hostname $node; $*"
