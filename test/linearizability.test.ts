import t from 'tap'
import { Recorder } from './helpers/histories.ts'
import { LONG } from './helpers/long.ts'
import { failedInside, makeLevels, random, startInstances, times } from './helpers/traffic.ts'

const SEED = 20261123
const ROUNDS = LONG ? 2500 : 12
const CLIENTS = 6
const TURNS = 6

t.test('RL-09 I1 I2 I4 I8 I9: histories of concurrent requests on two instances are those of a level', async (t) => {
  const { service, sends, send } = await startInstances(t)
  const problems: string[] = []
  const strange: unknown[] = []
  let histories = 0
  for (const round of times(ROUNDS, (round) => round)) {
    const seed = SEED + round
    const recorder = new Recorder(await makeLevels(send, `orbit-${round}`, ['live', 'test']))
    await Promise.all(times(CLIENTS, async (one) => {
      const next = random(seed * 100 + one)
      for (let turn = 0; turn < TURNS; turn++) await recorder.one(sends[one % sends.length]!, next)
    }))
    await recorder.end(send)
    problems.push(...recorder.problems(`seed ${seed}`))
    strange.push(...recorder.strange)
    histories += recorder.levels.length
  }
  t.comment(`${histories} histories`)
  t.same(problems, [])
  t.same(strange, [])
  t.same(failedInside(service), [])
})
