// A process that does one thing on a database and kills itself with SIGKILL at one point of it: `run` starts it, with a
// `Command` on its standard input and the service's configuration in its environment. It prints every point it reaches.
import { readFileSync, writeSync } from 'node:fs'
import { open } from '../../src/commands/common/open.ts'
import { loadConfig } from '../../src/config.ts'
import { QUICK } from './costs.ts'
import { perform, watchPoints, type Work } from './points.ts'

export interface Command {
  work: Work
  /** The number of the point at which it ends, from 1. */
  at: number
}

const { work, at } = JSON.parse(readFileSync(0, 'utf8')) as Command
const config = loadConfig(process.env)
const opened = await open(config)
let points = 0
watchPoints(work, (name, then) => {
  // Synchronously: nothing that is still in a buffer survives.
  writeSync(1, `${name}\n`)
  if (++points === at) then(() => process.kill(process.pid, 'SIGKILL'))
})
// To load the service takes as long as the rest, and some work needs none.
await perform(work, opened, async () =>
  (await import('../../src/app.ts')).buildApp({ ...opened, config, costs: QUICK }))
