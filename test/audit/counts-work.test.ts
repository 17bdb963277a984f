// runs: one database; 20 s
import t from 'tap'
import { MAX_COUNTED } from '../../schemas/audit.ts'
import { EVENTS } from '../../schemas/events.ts'
import { startApp } from '../helpers/app.ts'

const service = await startApp(t)

t.test('counts with a filter that looks at each event end their work, and say which days they cut', async (t) => {
  const { organization: o, call } = await service.organization()
  const insert = (first: number, count: number, date: string) => service.sql(`INSERT INTO audit_events
    (organization_id, seq, occurred_at, chain_kid, mac, action, actor_type, actor_id, resource_type, resource_id)
    SELECT '${o}', ${first} + n, '${date}T12:00:00Z', 'k', '',
      (ARRAY['${EVENTS.join("', '")}'])[1 + n % ${EVENTS.length}], 'user', 7, 'secret', 'S'
    FROM generate_series(1, ${count}) n`)
  const dates = Array.from({ length: 20 }, (_, i) => `2026-03-${String(i + 1).padStart(2, '0')}`)
  const [full, rest, last] = [dates.slice(0, 10), dates[10]!, dates[19]!]
  for (const [i, date] of full.entries()) await insert(1_000_000 + i * MAX_COUNTED, MAX_COUNTED, date)
  await insert(2_000_000, 5_000, rest)
  await insert(3_000_000, 5_001, last)
  await service.sql('ANALYZE audit_events')
  const countsOf = async (filter: string) => {
    const { body } = await call('GET', `/${o}/audit-events/counts?from=2026-03-01T00:00:00Z&to=2026-03-21T00:00:00Z${filter}`)
    const counted = new Map((body.data as { id: string, attributes: { count: number, is_capped: boolean } }[])
      .map(({ id, attributes: { count, is_capped } }) => [id, [count, is_capped]]))
    t.strictSame(full.map((date) => counted.get(date)), full.map(() => [MAX_COUNTED, false]), `${filter}: the days before`)
    return [counted.get(rest), counted.get(last)]
  }
  t.strictSame(await countsOf(''), [[5_000, false], [5_001, false]], 'a count by time alone is complete')
  for (const filter of ['&actor=user:7', '&resource=secret:S', '&actor=user:7&resource=secret:S']) {
    t.strictSame(await countsOf(filter), [[5_000, false], [5_000, true]], filter)
  }
})
