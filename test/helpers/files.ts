// Runs the given test files one after the other in one process, because loading the service, compiling the embedded
// PostgreSQL and warming up takes longer than most files. Each file becomes a test that contains the tests of the file.
import hooks from 'node:async_hooks'
import { existsSync, readFileSync } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { Test } from 'tap'

// tap tracks all promises with async hooks, to assign an uncaught error to a test. That takes a tenth of the time of a
// run, so it is disabled here: only one file runs at a time, and uncaught errors are assigned to this file.
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

// Test files use the root test of the process, so redirects these functions to the test of the running file.
for (const name of ['test', 'before', 'teardown'] as const) {
  Object.defineProperty(t, name, {
    value: (...args: never[]) =>
      (running![name] as (...args: never[]) => unknown)(...args)
  })
}

// scripts/test.mjs sets the timeouts. Files cannot change them, because they do not know how busy the machine is.
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

// CPU seconds of this process and, on Linux, of its ended child processes.
function cpuSeconds () {
  const { user, system } = process.cpuUsage()
  const stat = existsSync('/proc/self/stat') ? readFileSync('/proc/self/stat', 'utf8') : ''
  // Fields start after the process name, which may contain spaces. `cutime` and `cstime` are in ticks of 10 ms.
  const [children = 0, childrenInKernel = 0] = stat.slice(stat.lastIndexOf(')') + 2).split(' ').slice(13, 15).map(Number)
  return (user + system) / 1e6 + (children + childrenInKernel) / 100
}
