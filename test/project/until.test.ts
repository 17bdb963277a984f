// runs: no database
import t from 'tap'
import { until } from '../helpers/until.ts'

t.test('a test waits for the value of a condition, and fails with the condition after a bound', async (t) => {
  let looks = 0
  let again = 0
  t.equal(await until(() => ++looks === 3 && 'found', { every: 1, again: () => { again++ } }), 'found')
  t.strictSame([looks, again], [3, 2])
  t.equal(await until(async () => ++looks === 6 && looks, { every: 0 }), 6)

  const began = performance.now()
  await t.rejects(until(async () => looks > 6, { every: 1, within: 50 }), { message: /^not within 50 ms: .*looks > 6$/ })
  t.ok(performance.now() - began >= 50)
  await t.rejects(until(() => { throw new Error('broken') }), { message: 'broken' })
  const long = until(() => [
    'a condition with a text of more than two hundred characters', 'of which the message has only the first',
    'so that the reason for the failure is not hidden between lines of source', 'however long the condition is'
  ].includes(String(looks)), { within: 0 })
  await t.rejects(long, { message: /^not within 0 ms: .{199}…$/ })
})
