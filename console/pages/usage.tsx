import { ApiError, call } from '../api.ts'
import { Chart, Later, Load, messageOf, sizeOf, Table, Time } from '../ui.tsx'

export function UsagePage ({ organization }: { organization: string }) {
  return (
    <>
      <Load from={async () => (await call('getUsage', { path: { organization } })).data.data.attributes}>
        {({ plan, projects, members, bytes, api_calls, days }) => (
          <>
            <p>The plan is <strong>{plan}</strong>.</p>
            <Limit label='Projects' used={projects.used} limit={projects.limit} words={String} />
            <Limit label='Members' used={members.used} limit={members.limit} words={String} />
            <Limit label='Stored bytes' used={bytes.used} limit={bytes.limit} words={sizeOf} />
            <p>{api_calls.used} requests in this period; {api_calls.limit_per_minute === null ? 'no limit per minute' : `at most ${api_calls.limit_per_minute} per minute`}.</p>
            <Chart title='Requests per day' days={days.map(({ date, api_calls }) => ({ date, count: api_calls }))} />
          </>
        )}
      </Load>
      <Later name='usage.show'><Bills organization={organization} /></Later>
    </>
  )
}

function Bills ({ organization }: { organization: string }) {
  const path = { organization }
  const load = async () => {
    const invoices = (await call('listInvoices', { path, query: { per_page: 25 } })).data.data
    const subscription = await call('getSubscription', { path }).then(({ data }) => data.data.attributes).catch((error: unknown) => {
      if (error instanceof ApiError && error.status === 404) return messageOf(error)
      throw error
    })
    return { invoices, subscription }
  }
  return (
    <Load from={load}>
      {({ invoices, subscription }) => (
        <>
          <h2>Subscription and invoices</h2>
          <p>{typeof subscription === 'string' ? subscription : `${money(subscription.amount, subscription.currency)} a ${subscription.interval}.`}</p>
          <Table
            label='Invoices' head={['Number', 'Issued', 'Total', 'Status']} empty='There are no invoices.'
            rows={invoices.map(({ id, attributes: { number, issued_at, total, currency, status } }) =>
              [id, number, <Time at={issued_at} />, money(total, currency), status])}
          />
        </>
      )}
    </Load>
  )
}

/** An amount in minor units of its currency. */
function money (amount: number, currency: string): string {
  const format = new Intl.NumberFormat(undefined, { style: 'currency', currency })
  return format.format(amount / 10 ** (format.resolvedOptions().maximumFractionDigits ?? 2))
}

const Limit = ({ label, used, limit, words }: {
  label: string, used: number, limit: number | null, words: (count: number) => string
}) => (
  <p>
    <label>
      {label}: {words(used)}{limit === null ? ', no limit' : ` of ${words(limit)}`}{' '}
      {limit !== null && <meter min={0} max={limit} value={used} high={limit * 0.9} />}
    </label>
  </p>
)
