// runs: no database
import t from 'tap'
import { inStep, yieldToEventLoop } from '../../src/crypto/event-loop.ts'

// Requests that parse documents do so in steps, so that the steps of one turn of the event loop take some milliseconds.

const work = (milliseconds: number) => {
  const end = performance.now() + milliseconds
  while (performance.now() < end);
}

t.test('long steps run one in each turn of the event loop, in their order', async (t) => {
  const order: number[] = []
  const turns = new Set<number>()
  let turn = 0
  const count = () => {
    turn++
    if (order.length < 8) setImmediate(count)
  }
  count()
  await Promise.all(Array.from({ length: 8 }, (_, i) => inStep(() => {
    work(12)
    order.push(i)
    turns.add(turn)
  })))
  t.ok(turns.size >= 7, `${turns.size} turns`)
  t.strictSame(order, [0, 1, 2, 3, 4, 5, 6, 7])
})

t.test('short steps do not wait, and return their values', async (t) => {
  // The steps of the test before belong to an earlier turn.
  for (let i = 0; i < 3; i++) await yieldToEventLoop()
  let turns = 0
  setImmediate(() => { turns++ })
  t.strictSame(await Promise.all([1, 2, 3].map((n) => inStep(() => n))), [1, 2, 3])
  t.equal(turns, 0)
})

t.test('a step that throws ends only its own request', async (t) => {
  const steps = [0, 1, 2].map((n) => inStep(() => {
    work(12)
    if (n === 1) throw new Error('unreadable')
    return n
  }))
  t.strictSame((await Promise.allSettled(steps)).map(({ status }) => status), ['fulfilled', 'rejected', 'fulfilled'])
  t.equal(await inStep(() => 'next'), 'next')
})
