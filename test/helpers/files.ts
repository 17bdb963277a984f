// Runs the test files that are its arguments, one after the other in one process: each is a test, whose tests are those
// of the file. To load the service, to compile the embedded PostgreSQL and to warm up takes longer than most files do.
import hooks from 'node:async_hooks'
import { existsSync, readFileSync } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { Test } from 'tap'

// tap follows each promise from its making to its end, to know in whose test an error was thrown that nobody caught:
// that takes a tenth of the time of a run. Here files run one after the other, so it is the one that runs.
const { createHook } = hooks
hooks.createHook = () => {
  const none = { enable: () => none, disable: () => none }
  return none
}
syncBuiltinESMExports()
const { default: t } = await import('tap')
hooks.createHook = createHook
syncBuiltinESMExports()

const begin = t.test.bind(t)
let running: Test | undefined
process.on('uncaughtException', (error) => { (running ?? t).threw(error) })

// A file knows the test of the process alone: what it asks of that one, the file's own does.
for (const name of ['test', 'before', 'teardown'] as const) {
  Object.defineProperty(t, name, {
    value: (...args: never[]) =>
      (running![name] as (...args: never[]) => unknown)(...args)
  })
}

// What runs the files says how long each may take: how busy the machine is, no file knows.
const files = process.argv.slice(2)
const timeout = Number(process.env.TAP_TIMEOUT) * 1000
t.setTimeout(timeout * files.length)
Object.defineProperty(t, 'setTimeout', { value: () => {} })

for (const file of files) {
  await begin(file, { timeout }, async (t) => {
    running = t
    const before = cpuSeconds()
    t.teardown(() => { t.comment(`CPU ${(cpuSeconds() - before).toFixed(1)} s`) })
    await import(pathToFileURL(resolve(file)).href)
  })
}

// Of this process and, where the system tells, of those that it started and that ended: what a file costs, however busy
// the machine is.
function cpuSeconds () {
  const { user, system } = process.cpuUsage()
  const stat = existsSync('/proc/self/stat') ? readFileSync('/proc/self/stat', 'utf8') : ''
  // The name before may have spaces; `cutime` and `cstime` are in ticks of 10 ms.
  const [children = 0, childrenInKernel = 0] = stat.slice(stat.lastIndexOf(')') + 2).split(' ').slice(13, 15).map(Number)
  return (user + system) / 1e6 + (children + childrenInKernel) / 100
}
