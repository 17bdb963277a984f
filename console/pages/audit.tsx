import { useState } from 'preact/hooks'
import { ApiError, call, type Schemas } from '../api.ts'
import { Act, download, Field, Form, Help, instantOf, Later, messageOf, say, Section, Show, sizeOf, Table, Time, useLoad, type Fields } from '../ui.tsx'

type Filter = Partial<Record<'actor' | 'action' | 'resource' | 'from' | 'to', string>>
const PER_PAGE = 50
const MAX_EXPORT_PAGES = 100

/** The audit log, and what the organization uses. */
export function AuditPage ({ organization }: { organization: string }) {
  const [filter, setFilter] = useState<Filter>({})
  const change = ({ from = '', to = '', ...rest }: Fields) =>
    setFilter({ ...rest, from: from && instantOf(from), to: to && instantOf(to) })
  return (
    <>
      <h1>Audit and usage</h1>
      <Help of='audit' />
      <Section title='Events'>
        <Form name='audit.filter' keep run={change}>
          <div class='row'>
            <Field label='Who' name='actor' hint='Such as user:17, api_token:3 or operator.' />
            <Field label='What' name='action' hint='Such as secret.store.' />
            <Field label='On what' name='resource' hint='Such as secret:01JQ….' />
            <Field label='From' name='from' type='datetime-local' />
            <Field label='Until' name='to' type='datetime-local' />
          </div>
        </Form>
        <Events key={JSON.stringify(filter)} organization={organization} filter={filter} />
      </Section>
      <Section title='Usage and plan'>
        <Later name='usage.show'><Usage organization={organization} /></Later>
      </Section>
    </>
  )
}

function Events ({ organization, filter }: { organization: string, filter: Filter }) {
  const path = { organization }
  const query = filter as { action?: Schemas['EventName'] }
  const [more, setMore] = useState<Schemas['AuditEvent'][]>([])
  const [isEnd, setEnd] = useState(false)
  const [progress, setProgress] = useState('')
  const events = useLoad(async () => (await call('listAuditEvents', { path, query: { ...query, per_page: PER_PAGE } })).data.data, [])
  const counts = useLoad(async () => (await call('countAuditEvents', { path, query })).data.data, [])
  const showMore = async () => {
    const last = more.at(-1) ?? events.value!.at(-1)!
    const { data } = await call('listAuditEvents', { path, query: { ...query, before: last.attributes.sequence, per_page: PER_PAGE } })
    setMore([...more, ...data.data])
    setEnd(data.data.length < PER_PAGE)
  }
  const save = async ({ format = 'csv' }: Fields) => {
    const accept = format === 'csv' ? 'text/csv' : 'application/x-ndjson'
    const parts: string[] = []
    let after: string | undefined
    for (let page = 0; page < MAX_EXPORT_PAGES; page++) {
      const { text, headers } = await call('exportAuditEvents', { path, query: { ...query, ...(after !== undefined && { after: Number(after) }) }, accept })
      // Only the first page of a CSV text keeps its line of names.
      parts.push(page > 0 && format === 'csv' ? text.slice(text.indexOf('\n') + 1) : text)
      setProgress(`Loaded ${(page + 1) * 1000} events…`)
      after = /[?&]after=(\d+)/.exec(headers.get('link') ?? '')?.[1]
      if (after === undefined) break
    }
    setProgress('')
    download(`audit-${organization}.${format}`, parts.join(''), accept)
    say(after === undefined ? 'The events are exported.' : `Only the first ${MAX_EXPORT_PAGES * 1000} events are exported: choose a shorter time.`)
  }
  return (
    <>
      <Show of={counts}>
        {(days) => <Chart title='Events per day' days={days.map(({ attributes: { date, count, is_capped } }) => ({ date, count, more: is_capped }))} />}
      </Show>
      <Show of={events}>
        {(first) => (
          <>
            <Table
              label='Events' head={['When', 'Who', 'What', 'On what', 'From', 'Details']} heading={2} empty='No event matches the filter.'
              rows={[...first, ...more].map(({ id, attributes: event }) => [
                id, <Time at={event.occurred_at} />, `${event.actor_name ?? event.actor.type.replace('_', ' ')}${event.actor.id === null ? '' : ` (${event.actor.id})`}`,
                event.action, [event.resource.type, event.resource.id].filter((part) => part !== null).join(' '), event.ip,
                Object.entries(event.details ?? {}).map(([name, value]) => `${name}: ${String(value)}`).join(', ')
              ])}
            />
            {first.length === PER_PAGE && !isEnd && <Act name='audit.more' run={showMore} />}
          </>
        )}
      </Show>
      <Form name='audit.export' keep run={save}>
        <Field label='Format of the export' name='format' options={[['csv', 'CSV, for spreadsheets'], ['ndjson', 'JSON, an event in each line']]} />
      </Form>
      {progress !== '' && <p role='status'>{progress}</p>}
    </>
  )
}

interface Day { date: string, count: number, more?: boolean }

/** Bars by day, with a table for screen readers. */
function Chart ({ title, days }: { title: string, days: readonly Day[] }) {
  const highest = Math.max(1, ...days.map(({ count }) => count))
  const scale = 24 / highest
  const width = 100 / Math.max(1, days.length)
  return (
    <figure>
      <figcaption>{title}: at most {highest} on one day</figcaption>
      <svg viewBox='0 0 100 24' preserveAspectRatio='none' aria-hidden='true' class='chart'>
        {days.map(({ date, count }, i) => (
          <rect key={date} x={(i + 0.1) * width} width={width * 0.8} y={24 - count * scale} height={count * scale} />
        ))}
      </svg>
      <details>
        <summary>{title} as a table</summary>
        <Table label={title} head={['Day', 'Number']} rows={days.map(({ date, count, more }) => [date, date, more === true ? `more than ${count}` : count])} />
      </details>
    </figure>
  )
}

/** Usage, limits and bills. They are loaded on request, because most people come for the events. */
function Usage ({ organization }: { organization: string }) {
  const path = { organization }
  const usage = useLoad(async () => (await call('getUsage', { path })).data.data.attributes, [])
  const bills = useLoad(async () => {
    const invoices = (await call('listInvoices', { path, query: { per_page: 25 } })).data.data
    const subscription = await call('getSubscription', { path }).then(({ data }) => data.data.attributes).catch((error: unknown) => {
      if (error instanceof ApiError && error.status === 404) return messageOf(error)
      throw error
    })
    return { invoices, subscription }
  }, [])
  return (
    <>
      <Show of={usage}>
        {({ plan, projects, members, bytes, api_calls, days }) => (
          <>
            <p>The plan is <strong>{plan}</strong>.</p>
            <Limit label='Projects' used={projects.used} limit={projects.limit} words={String} />
            <Limit label='Members' used={members.used} limit={members.limit} words={String} />
            <Limit label='Stored bytes' used={bytes.used} limit={bytes.limit} words={sizeOf} />
            <p>{api_calls.used} requests in this period; {api_calls.limit_per_minute === null ? 'no limit' : `at most ${api_calls.limit_per_minute}`} a minute.</p>
            <Chart title='Requests per day' days={days.map(({ date, api_calls }) => ({ date, count: api_calls }))} />
          </>
        )}
      </Show>
      <Show of={bills}>
        {({ invoices, subscription }) => (
          <>
            <h3>Subscription and invoices</h3>
            {typeof subscription === 'string'
              ? <p>{subscription}</p>
              : <p>{money(subscription.amount, subscription.currency)} a {subscription.interval}.</p>}
            <Table
              label='Invoices' head={['Number', 'Issued', 'Total', 'Status']} empty='There are no invoices.'
              rows={invoices.map(({ id, attributes: { number, issued_at, total, currency, status } }) =>
                [id, number, <Time at={issued_at} />, money(total, currency), status])}
            />
          </>
        )}
      </Show>
    </>
  )
}

/** An amount in minor units of its currency. */
function money (amount: number, currency: string): string {
  const format = new Intl.NumberFormat(undefined, { style: 'currency', currency })
  return format.format(amount / 10 ** (format.resolvedOptions().maximumFractionDigits ?? 2))
}

function Limit ({ label, used, limit, words }: {
  label: string, used: number, limit: number | null, words: (count: number) => string
}) {
  return (
    <p>
      <label>
        {label}: {words(used)}{limit === null ? ', no limit' : ` of ${words(limit)}`}{' '}
        {limit !== null && <meter min={0} max={limit} value={used} high={limit * 0.9} />}
      </label>
    </p>
  )
}
