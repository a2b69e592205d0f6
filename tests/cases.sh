# Test cases of shell scripts: to be sourced, also by a POSIX sh. Each case is a command; end_cases prints the line that test.sh reads.
# shellcheck shell=sh

passed=0 failed=0

# run_case NAME COMMAND [ARGUMENT ...]: runs the command, and shows its output if it fails.
run_case() {
    case_name=$1 case_output=$(mktemp)
    shift
    if "$@" >"$case_output" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $case_name"
    else
        failed=$((failed + 1))
        echo "FAIL  $case_name"
        sed 's/^/  /' "$case_output"
    fi
    rm "$case_output"
}

# in_folder FOLDER COMMAND: in a subshell, which the command may exit.
in_folder() { (cd "$1" && "$2"); }

end_cases() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}
