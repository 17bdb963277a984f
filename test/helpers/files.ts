// Runs test files one after the other in one process. Loading the service, compiling the embedded PostgreSQL and
// warming up take longer than most files. scripts/test.mjs sends the path of each file, and gets its result.
import hooks from 'node:async_hooks'
import { readFileSync } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import type { Test } from 'tap'
import { Parser } from 'tap-parser'
import { stringify } from 'yaml'

// tap follows each promise with async hooks to find the test that threw an error. That takes 9 % of the CPU time. Only
// one file runs at a time, so errors belong to this file instead.
const { createHook } = hooks
hooks.createHook = () => ({ enable () { return this }, disable () { return this } })
syncBuiltinESMExports()
const { default: t } = await import('tap')
hooks.createHook = createHook
syncBuiltinESMExports()

const begin = t.test.bind(t)
let running: Test | undefined
process.on('uncaughtException', (error) => { (running ?? t).threw(error) })
// Test files use the root test of the process, so this code redirects these functions to the test of the running file.
// The runner sets the time limits, because files do not know how busy the machine is.
for (const name of ['test', 'before', 'teardown'] as const) {
  Object.defineProperty(t, name, { value: (...args: never[]): unknown => Reflect.apply(running![name], running, args) })
}
t.setTimeout(0)
Object.defineProperty(t, 'setTimeout', { value: () => {} })

let told: { failures: string[], notes: string[] } = { failures: [], notes: [] }
const collect = (parser: Parser) => {
  parser.on('assert', ({ ok, closingTestPoint: isParent, fullname, diag }) =>
    ok || isParent || told.failures.push(`${fullname}\n${stringify(diag)}`))
  parser.on('skip', ({ fullname }) => told.notes.push(`left out: ${fullname}`))
  parser.on('comment', (comment) => { if (!comment.startsWith('# Subtest')) told.notes.push(comment.trim()) })
  return parser.on('child', collect)
}
t.pipe(collect(new Parser()))

process.on('disconnect', () => { t.end() })
process.on('message', async ({ path, timeout }: { path: string, timeout: number }) => {
  told = { failures: [], notes: [] }
  const [began, cpuBefore] = [performance.now(), cpuSeconds()]
  const { pass, fail } = (await begin(path, { timeout }, async (t) => {
    running = t
    await import(`../${path}.test.js`)
  }))!
  const seconds = (performance.now() - began) / 1000
  process.send!({ path, pass, fail, ...told, seconds, cpu: cpuSeconds() - cpuBefore })
})

// CPU seconds of this process and, on Linux, of its ended child processes.
function cpuSeconds () {
  const { user, system } = process.cpuUsage()
  if (process.platform !== 'linux') return (user + system) / 1e6
  // Fields start after the process name, which may contain spaces: utime, stime, cutime and cstime, in ticks of 10 ms.
  const ticks = readFileSync('/proc/self/stat', 'utf8').replace(/.*\) /s, '').split(' ').slice(11, 15)
  return ticks.reduce((sum, part) => sum + Number(part), 0) / 100
}
