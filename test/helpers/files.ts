// Runs test files one after the other in one process, because loading the service, compiling the embedded PostgreSQL
// and warming up takes longer than most files. scripts/test.mjs sends the path of each file, and gets its result.
import hooks from 'node:async_hooks'
import { existsSync, readFileSync } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { Parser } from 'tap-parser'
import type { Test } from 'tap'
import { stringify } from 'yaml'

// tap follows each promise with async hooks, to know which test threw an error. That takes 9 % of the CPU time. One
// file runs at a time, so an error is assigned to the file instead.
const { createHook } = hooks
hooks.createHook = () => ({ enable () { return this }, disable () { return this } })
syncBuiltinESMExports()
const { default: t } = await import('tap')
hooks.createHook = createHook
syncBuiltinESMExports()

const begin = t.test.bind(t)
let running: Test | undefined
process.on('uncaughtException', (error) => { (running ?? t).threw(error) })
// Test files use the root test of the process, so redirects these functions to the test of the running file. The runner
// sets the time limits, because files do not know how busy the machine is.
for (const name of ['test', 'before', 'teardown'] as const) {
  Object.defineProperty(t, name, {
    value: (...args: never[]) => (running![name] as (...args: never[]) => unknown)(...args)
  })
}
t.setTimeout(0)
Object.defineProperty(t, 'setTimeout', { value: () => {} })

let failures: string[] = []
const collect = (parser: Parser) => {
  parser.on('assert', ({ ok, fullname, diag, closingTestPoint }) => {
    if (!ok && !closingTestPoint) failures.push(`${fullname}\n${stringify(diag)}`)
  })
  parser.on('child', collect)
}
const parser = new Parser()
collect(parser)
t.pipe(parser)

process.on('message', (file: { path: string, timeout: number }) => {
  run(file).then((result) => process.send!(result), (error: unknown) => { throw error })
})
process.on('disconnect', () => { t.end() })

async function run ({ path, timeout }: { path: string, timeout: number }) {
  failures = []
  const [began, before] = [performance.now(), cpuSeconds()]
  const { pass, fail, skips, failures: failed } = (await begin(path, { timeout }, async (t) => {
    running = t
    await import(pathToFileURL(resolve('dist/test', `${path}.test.js`)).href)
  }))!
  if (failures.length === 0) failures = failed.map(({ fullname, diag }) => `${fullname}\n${stringify(diag)}`)
  const seconds = (performance.now() - began) / 1000
  return { path, pass, fail, skipped: skips.map(({ name }) => name), failures, seconds, cpu: cpuSeconds() - before }
}

// CPU seconds of this process and, on Linux, of its ended child processes.
function cpuSeconds () {
  const { user, system } = process.cpuUsage()
  const stat = existsSync('/proc/self/stat') ? readFileSync('/proc/self/stat', 'utf8') : ''
  // Fields start after the process name, which may contain spaces. `cutime` and `cstime` are in ticks of 10 ms.
  const [children = 0, childrenInKernel = 0] = stat.slice(stat.lastIndexOf(')') + 2).split(' ').slice(13, 15).map(Number)
  return (user + system) / 1e6 + (children + childrenInKernel) / 100
}
