#!/usr/bin/env bash
# Compares what two builds of the packhorse command print: plans of every policy, runs and predictions for every scenario, byte by byte.
# A change of words or of structure must leave them as they are. Solve times are left out.
#
#   lab/same-output.sh OLD/packhorse-lab NEW/packhorse-lab [FOLDER]
#
# FOLDER (default: target/same-output) keeps what was printed; OLD's part is kept between runs.
set -euo pipefail
old=$(realpath "$1") new=$(realpath "$2")
cd "$(dirname "$0")/.."
folder=${3:-target/same-output}
policies="exclusive first-fit nexus gpulet gslice usher wao-usher ao-milp wsm-milp goodput"

outputs() { # PROGRAM FOLDER
    mkdir -p "$2"
    for scenario in $(find scenarios -name '*.toml' | sort); do
        local name=${scenario//\//_} used=$policies
        # iGniter's coefficients are published for its own models only.
        case $scenario in *igniter*) used="igniter first-fit goodput" ;; esac
        for policy in $used; do
            print "$1" "$2/$name.plan.$policy" plan --scenario "$scenario" --policy "$policy" --json
        done
        for discipline in deadline fixed-wait; do
            print "$1" "$2/$name.simulate.$discipline" simulate --scenario "$scenario" --policy usher --policy goodput \
                --discipline "$discipline" --seed 1 --json
        done
    done
    print "$1" "$2/replan" simulate --scenario scenarios/ramp/evening.toml --policy goodput --replan-every 2 --json
    print "$1" "$2/predict" predict --scenario scenarios/igniter/pairs.toml --policy igniter \
        --measured scenarios/igniter/pairs.csv --json
}

print() { # PROGRAM FILE ARGUMENTS; a refusal is an output like any other
    local program=$1 file=$2
    shift 2
    { "$program" "$@" 2>/dev/null || echo "exit status $?"; } | sed -E 's/"solve_ms": ?[0-9.e+-]+/"solve_ms":0/' > "$file"
}

[ -e "$folder/old/done" ] || { outputs "$old" "$folder/old" && touch "$folder/old/done"; }
rm -rf "$folder/new"
outputs "$new" "$folder/new"
touch "$folder/new/done"
diff -rq "$folder/old" "$folder/new"
echo "$(find "$folder/new" -type f | wc -l) outputs, none differs"
