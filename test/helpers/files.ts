// Runs the test files that are its arguments, one after the other in one process: each is a test, whose tests are those
// of the file. To load the service, to compile the embedded PostgreSQL and to warm up takes longer than most files do.
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import t, { type Test } from 'tap'

const begin = t.test.bind(t)
let running: Test | undefined

// A file knows the test of the process alone: what it asks of that one, the file's own does.
for (const name of ['test', 'before', 'teardown'] as const) {
  Object.defineProperty(t, name, {
    value: (...args: never[]) =>
      (running![name] as (...args: never[]) => unknown)(...args)
  })
}

// What runs the files says how long each may take: how busy the machine is, no file knows.
Object.defineProperty(t, 'setTimeout', { value: () => {} })

for (const file of process.argv.slice(2)) {
  await begin(file, { timeout: Number(process.env.TAP_TIMEOUT) * 1000 }, async (t) => {
    running = t
    await import(pathToFileURL(resolve(file)).href)
  })
}
