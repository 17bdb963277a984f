// runs: no database
import t from 'tap'
import { Gate, WorkOverloaded } from '../../src/gate.ts'

const nextTurn = () => new Promise(setImmediate)

/** A job that runs until `end` is called. */
function openJob () {
  let end = () => {}
  const ended = new Promise<void>((resolve) => { end = resolve })
  return { end, work: async () => ended }
}

t.test('a gate runs so many at once, in order, and frees the place of work that failed', async (t) => {
  const gate = new Gate([{ running: 2, waiting: 3 }])
  const order: number[] = []
  let running = 0
  let most = 0
  const piece = (i: number) => gate.run([], async () => {
    order.push(i)
    most = Math.max(most, ++running)
    await nextTurn()
    running--
    if (i === 1) throw new Error('failed')
  })
  const results = await Promise.allSettled([1, 2, 3, 4, 5, 6].map(piece))
  t.same(order, [1, 2, 3, 4, 5])
  t.equal(most, 2)
  t.same(results.map(({ status }) => status === 'fulfilled'), [false, true, true, true, true, false])
  t.equal((await Promise.all([7, 8, 9, 10, 11].map(piece))).length, 5)
  t.same([gate.running, gate.waiting, gate.free, gate.refused], [0, 0, 2, { full: 1, late: 0 }])
})

t.test('a job that waits too long is refused and leaves the queue', async (t) => {
  const gate = new Gate([{ running: 1, waiting: 1 }], { timeout: 20, refuse: (reason) => new Error(reason) })
  const first = openJob()
  const done = gate.run([], first.work)
  await t.rejects(gate.run([], async () => 'never'), /late/)
  const third = gate.run([], async () => 'third', 60_000)
  await t.rejects(gate.run([], async () => 'no place'), /full/, 'one place, and it is the third one\'s')
  first.end()
  t.equal((await Promise.all([done, third]))[1], 'third')
  t.equal(await gate.run([], async () => 'later'), 'later')
  t.same(gate.refused, { full: 1, late: 1 })
})

t.test('the wait of a gate without a limit has none, and the clock of a gate ends its waits', async (t) => {
  const ends: (() => void)[] = []
  const after = (_milliseconds: number, late: () => void) => {
    ends.push(late)
    return () => { ends.splice(ends.indexOf(late), 1) }
  }
  const gate = new Gate([{ running: 1 }], { after })
  const first = openJob()
  const done = gate.run([], first.work)
  const refused = t.rejects(gate.run([], async () => {}), WorkOverloaded)
  const patient = gate.run([], async () => 'patient', Infinity)
  const started = gate.run([], async () => 'started')
  t.equal(ends.length, 2)
  ends[0]!()
  await refused
  first.end()
  t.same(await Promise.all([done, patient, started]), [undefined, 'patient', 'started'])
  t.equal(ends.length, 1, 'the clock of a job that started is stopped')
})

t.test('each key has its own queue, however many other keys come meanwhile', async (t) => {
  const gate = new Gate([{}, { running: 1, waiting: 1 }])
  const first = openJob()
  const done = gate.run(['a'], first.work)
  const waiting = gate.run(['a'], async () => 'waiting')
  for (let key = 0; key < 5_000; key++) await gate.run([String(key)], async () => {})
  await t.rejects(gate.run(['a'], async () => 'no place'), WorkOverloaded)
  first.end()
  t.equal((await Promise.all([done, waiting]))[1], 'waiting')
  t.same([gate.running, gate.waiting], [0, 0])
})

t.test('a slot is released once, however often it is given back, and no owner gets all slots', async (t) => {
  const gate = new Gate([{ running: 4 }, { running: 2 }])
  const take = (owner: string) => gate.tryEnter([owner])
  const [a, b] = [take('A'), take('A')]
  t.equal(take('A'), undefined, 'one owner has two')
  const c = take('B')
  t.ok(c)
  t.ok(take('C'))
  t.equal(take('D'), undefined, 'four are all')
  a!()
  a!()
  t.ok(take('D'))
  t.equal(take('D'), undefined, 'what was given back twice was given back once')
  b!()
  c!()
  t.ok(take('A'))
})

/** Runs jobs with these keys, one after the other, behind jobs that run. Returns the order in which they start. */
async function orderOf (gate: Gate, running: readonly string[][], waiting: readonly string[][]) {
  const order: string[] = []
  const open = running.map((keys) => ({ ...openJob(), keys }))
  const before = open.map(({ keys, work }) => gate.run(keys, work))
  await nextTurn()
  const jobs = waiting.map((keys) => gate.run(keys, async () => {
    order.push(keys.join(' '))
    await nextTurn()
  }))
  for (const { end } of open) end()
  await Promise.all([...before, ...jobs])
  return order
}

t.test('waiting keys take turns, and the inner keys of each, in the order of their arrival', async (t) => {
  const gate = new Gate([{ running: 1 }])
  const busy = [['1', 'a'], ['1', 'a'], ['1', 'a'], ['1', 'b'], ['2', 'a'], ['2', 'b'], ['3', 'a']]
  t.same(await orderOf(gate, [['9']], busy), ['1 a', '2 a', '3 a', '1 b', '2 b', '1 a', '1 a'])
  t.same(await orderOf(gate, [['1', 'a']], [['1', 'a'], ['2', 'a'], ['3', 'a'], ['1', 'b']]),
    ['2 a', '3 a', '1 b', '1 a'], 'a key whose job ran comes after those that waited meanwhile')
})

t.test('callers of an organization take turns, and other organizations do not wait for them', async (t) => {
  const gate = new Gate([{}, { running: 1 }, { waiting: 2 }])
  const held = openJob()
  const first = gate.run(['A', 'one'], held.work)
  const order: string[] = []
  const read = (organization: string, caller: string) =>
    gate.run([organization, caller], async () => { order.push(`${organization} ${caller}`) })
  const waiting = [read('A', 'one'), read('A', 'one'), read('A', 'two')]
  await t.rejects(read('A', 'one'), WorkOverloaded, 'the queue of the caller is full')
  await read('B', 'one')
  t.same(order, ['B one'])
  held.end()
  await Promise.all([first, ...waiting])
  t.same(order, ['B one', 'A two', 'A one', 'A one'])
})

t.test('a job waits while its key has all of its places, although the gate has free ones', async (t) => {
  const gate = new Gate([{ running: 3 }, { running: 2 }])
  const [one, two, other] = [openJob(), openJob(), openJob()]
  const held = [gate.run(['A'], one.work), gate.run(['A'], two.work), gate.run(['B'], other.work)]
  let isStarted = false
  const third = gate.run(['A'], async () => { isStarted = true })
  other.end()
  await held[2]
  await nextTurn()
  t.equal(isStarted, false)
  t.equal(await gate.run(['C'], async () => 'at once'), 'at once')
  one.end()
  await third
  two.end()
  await Promise.all(held)
  t.same([gate.running, gate.waiting], [0, 0])
})
