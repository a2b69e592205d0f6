#!/bin/sh
# Runs the plugin of its own name in PLUGINS and writes each call as a line into /run/NAME.calls. If the file /run/NAME.hold
# exists, ADD makes /run/NAME.held and waits until a test removes /run/NAME.hold; after the plugin has ended, the line "ended" follows.
name=${0##*/}
# All of the input, so that the runtime may end while ADD waits.
input=$(cat)
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS" >>"/run/$name.calls"
held=
if [ "$CNI_COMMAND" = ADD ] && [ -e "/run/$name.hold" ]; then
    held=1
    : >"/run/$name.held"
    while [ -e "/run/$name.hold" ]; do sleep 0.01; done
fi
printf '%s' "$input" | "PLUGINS/$name"
status=$?
[ -z "$held" ] || echo ended >>"/run/$name.calls"
exit $status
