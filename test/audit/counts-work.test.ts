// runs: one database; 10 s
import t from 'tap'
import { MAX_COUNTED } from '../../schemas/audit.ts'
import { EVENTS } from '../../schemas/events.ts'
import { mostOfDay } from '../../src/repositories/audit/events.ts'
import { startApp } from '../helpers/app.ts'
import { LONG } from '../helpers/long.ts'

const service = await startApp(t)

t.test('filters that look at each event count fewer of each day after 150,000 events, and at least 500', async (t) => {
  for (const filter of [{ actor: 'user:7' }, { resource: 'secret:S' }, { project: 'P' }, { target: 'T' }, { environment: 'E' }]) {
    const most = [0, 50_000, 100_000, 149_000, 150_000, 160_000].map((counted) => mostOfDay(filter, counted, 10))
    t.strictSame(most, [MAX_COUNTED, MAX_COUNTED, 5_000, 500, 500, 500], Object.keys(filter).join())
  }
  for (const filter of [{}, { action: 'secret.store' as const }]) t.equal(mostOfDay(filter, 1_000_000, 10), MAX_COUNTED)
})

t.test('counts with a filter that looks at each event end their work, and say which days they cut', async (t) => {
  const { organization: o, call } = await service.organization()
  const insert = (first: number, count: number, date: string) => service.sql(`INSERT INTO audit_events
    (organization_id, seq, occurred_at, chain_kid, mac, action, actor_type, actor_id, resource_type, resource_id)
    SELECT '${o}', ${first} + n, '${date}T12:00:00Z', 'k', '',
      (ARRAY['${EVENTS.join("', '")}'])[1 + n % ${EVENTS.length}], 'user', 7, 'secret', 'S'
    FROM generate_series(1, ${count}) n`)
  const dates = Array.from({ length: 20 }, (_, i) => `2026-03-${String(i + 1).padStart(2, '0')}`)
  // The fewest events after which a day has less than `MAX_COUNTED`; in the proofs, as many as ten days can have.
  const full = dates.slice(0, LONG ? 10 : 6)
  const [rest, last] = [dates[10]!, dates[19]!]
  const most = mostOfDay({ actor: 'user:7' }, full.length * MAX_COUNTED, 10)
  t.equal(most, LONG ? 5_000 : 9_000)
  for (const [i, date] of full.entries()) await insert(1_000_000 + i * MAX_COUNTED, MAX_COUNTED, date)
  if (LONG) await insert(2_000_000, most, rest)
  await insert(3_000_000, most + 1, last)
  await service.sql('ANALYZE audit_events')
  const countsOf = async (filter: string) => {
    const { body } = await call('GET', `/${o}/audit-events/counts?from=2026-03-01T00:00:00Z&to=2026-03-21T00:00:00Z${filter}`)
    const counted = new Map((body.data as { id: string, attributes: { count: number, is_capped: boolean } }[])
      .map(({ id, attributes: { count, is_capped } }) => [id, [count, is_capped]]))
    t.strictSame(full.map((date) => counted.get(date)), full.map(() => [MAX_COUNTED, false]), `${filter}: the days before`)
    return LONG ? [counted.get(rest), counted.get(last)] : [counted.get(last)]
  }
  // audit/audit-export has a day that is full, but not cut.
  const whole = LONG ? [[most, false]] : []
  t.strictSame(await countsOf(''), [...whole, [most + 1, false]], 'a count by time alone is complete')
  for (const filter of ['&actor=user:7', '&resource=secret:S', '&actor=user:7&resource=secret:S']) {
    t.strictSame(await countsOf(filter), [...whole, [most, true]], filter)
  }
})
