// For the scripts that npm starts. A terminal sends Ctrl-C to the script and to npm, and npm passes it on: the script
// gets two signals. Without this filter, the second one would end the service or the command at once. `exec` in
// package.json replaces `sh` by the script, because npm passes signals on to `sh` alone.
const REPEAT_MS = 1_000

const { emit } = process
const times = { SIGINT: -Infinity, SIGTERM: -Infinity }

process.emit = function (event, ...args) {
  if (Object.hasOwn(times, event)) {
    const now = performance.now()
    if (now - times[event] < REPEAT_MS) return true
    times[event] = now
  }
  return emit.call(this, event, ...args)
}
