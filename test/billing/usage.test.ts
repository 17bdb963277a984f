// runs: both databases
import t from 'tap'
import { DAYS_OF_USAGE } from '../../schemas/billing.ts'
import { startApp } from '../helpers/app.ts'

const service = await startApp(t)
const DAY = 24 * 60 * 60 * 1000
const ago = (days: number) => new Date(Date.now() - days * DAY).toISOString().slice(0, 10)

t.test('requests are counted per day for 31 days, and the month is the sum of its days', async (t) => {
  const caller = await service.organization()
  const other = await service.organization()
  const o = caller.organization
  const usage = async () => (await caller.call('GET', `/organizations/${o}/usage`)).body.data.attributes
  const { days, api_calls } = await usage()
  t.strictSame(days, Array.from({ length: DAYS_OF_USAGE }, (_, i) =>
    ({ date: ago(DAYS_OF_USAGE - 1 - i), api_calls: 0 })))
  t.equal(api_calls.used, 0)
  for (const [age, calls] of [[1, 5], [30, 7], [31, 11], [400, 13]]) {
    await service.sql(`INSERT INTO api_usage (organization_id, day, calls) VALUES ('${o}', '${ago(age!)}', ${calls}),
      ('${other.organization}', '${ago(age!)}', 1000)`)
  }
  await service.app.calls.record()
  const after = await usage()
  const shown = Object.fromEntries(
    (after.days as { date: string, api_calls: number }[]).map(({ date, api_calls }) => [date, api_calls])
  )
  t.equal(shown[ago(0)], 1, 'the request above')
  t.equal(shown[ago(1)], 5)
  t.equal(shown[ago(30)], 7)
  t.equal(after.days.length, DAYS_OF_USAGE)
  const inMonth = [[0, 1], [1, 5], [30, 7]].filter(([age]) => ago(age!).startsWith(ago(0).slice(0, 7)))
  t.equal(after.api_calls.used, inMonth.reduce((sum, [, calls]) => sum + calls!, 0))
  const kept = async (id: string) => (await service.sql(
    `SELECT count(*)::int AS days FROM api_usage WHERE organization_id = '${id}'`
  ))[0]
  t.strictSame(await kept(o), { days: 3 }, 'older days are deleted with the next count')
  t.strictSame(await kept(other.organization), { days: 4 }, 'of this organization alone')
})
