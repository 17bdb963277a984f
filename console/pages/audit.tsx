import { useState } from 'preact/hooks'
import names from '../../dist/openapi-events.json'
import { call, firstPages, type Schemas } from '../api.ts'
import { columnsOf, kindOf, levelOf } from '../levels.ts'
import { levelValue, PartPicker } from '../part-picker.tsx'
import { canSomewhere } from '../rights.ts'
import {
  Act, Chart, download, Field, Form, Help, instantOf, Later, Load, say, Section, Show, Table, Time, useLoad,
  type Fields, type Option
} from '../ui.tsx'

type Event = Schemas['AuditEvent']
type Filter = Partial<Record<'actor' | 'action' | 'resource' | 'project' | 'target' | 'environment' | 'from' | 'to', string>>
const PER_PAGE = 50
const MAX_EXPORT_PAGES = 100
const HOUR = 60 * 60 * 1000

const PERIODS: readonly Option[] = [
  ['', 'At any time'], ['1', 'In the last hour'], ['24', 'In the last day'], ['168', 'In the last week'],
  ['720', 'In the last 30 days'], ['period', 'In a period…']
]

export function AuditPage ({ organization }: { organization: string }) {
  const [filter, setFilter] = useState<Filter>({})
  const [known, setKnown] = useState<ReadonlyMap<string, string>>(new Map())
  const change = async ({ actor = '', action = '', resource = '', project = '', level = '', hours = '', from = '', to = '' }: Fields) => setFilter({
    actor,
    action,
    resource,
    ...project !== '' && await placeOf(organization, project, level),
    from: hours === 'period' ? from && instantOf(from) : hours && new Date(Date.now() - Number(hours) * HOUR).toISOString(),
    to: to && instantOf(to)
  })
  return (
    <>
      <Help text='The audit log has each change and each read of a value: who, when and from where.' />
      <Later name='audit.choose'>
        <Form name='audit.filter' keep run={change}><Filters organization={organization} found={setKnown} /></Form>
      </Later>
      <Events key={JSON.stringify(filter)} {...{ organization, filter, known }} />
    </>
  )
}

/** The id of a level that a person has chosen, as a filter. */
async function placeOf (organization: string, project: string, level: string): Promise<Filter> {
  for await (const column of columnsOf({ organization, project })) {
    const found = levelOf({ organization, slug: project }, column)
    if (levelValue(found) === level) return { [kindOf(found)]: column.id }
  }
  throw new Error('This part of the project is not there any more. Choose another one.')
}

/** The lists to choose from. `found`: the names of people and tokens by actor. */
function Filters ({ organization, found }: {
  organization: string, found: (names: ReadonlyMap<string, string>) => void
}) {
  const path = { organization }
  const [hours, setHours] = useState('')
  const actors = useLoad(async () => {
    const [people, tokens, rules] = await Promise.all([
      !canSomewhere(['member:read']) ? [] : (await firstPages(async (page) => (await call('listMembers', { path, query: { page, per_page: 100, sort: 'name' } })).data)).found,
      !canSomewhere(['api-token:read']) ? [] : (await firstPages(async (page) => (await call('listApiTokens', { path, query: { page, per_page: 100, sort: 'name' } })).data)).found,
      !canSomewhere(['api-token:read']) ? [] : (await call('listWorkloads', { path, query: { per_page: 100, sort: 'name' } })).data.data
    ])
    const options: Option[] = [
      ...people.map(({ id, attributes: { name, email } }) => [`user:${id}`, `${name}, ${email}`] as const),
      ...tokens.map(({ id, name }) => [`api_token:${id}`, `${name} (token)`] as const),
      ...rules.map(({ id, attributes: { name } }) => [`workload:${id}`, `${name} (workload)`] as const)
    ]
    found(new Map(options))
    return options
  }, [])
  return (
    <div class='row'>
      <Show of={actors}>
        {(options) => <Field label='Who' name='actor' options={[['', 'Anyone'], ...options, ['operator', 'The operator'], ['system', 'The service itself']]} />}
      </Show>
      <Field label='What' name='action' options={[['', 'Everything'], ...[...names].sort().map((name) => [name, name] as const)]} />
      <Field label='When' name='hours' options={PERIODS} onInput={setHours} />
      {hours === 'period' && <Field label='From' name='from' type='datetime-local' />}
      {hours === 'period' && <Field label='Until' name='to' type='datetime-local' />}
      {canSomewhere(['project:read']) && <PartPicker organization={organization} label='Where' none='Everywhere' />}
      <Field
        label='Id of what was touched' name='resource'
        hint='Such as secret:01JQZ6V9T4. Events of earlier releases have no place: only this id finds them.'
      />
    </div>
  )
}

const PLACE = ['project', 'target', 'environment'] as const
const OF_PLACE = new Set<string>(PLACE.flatMap((level) => [level, `${level}_id`]))

function Events ({ organization, filter, known }: {
  organization: string, filter: Filter, known: ReadonlyMap<string, string>
}) {
  const path = { organization }
  const query = filter as { action?: Schemas['EventName'] }
  const [more, setMore] = useState<Event[]>([])
  const [isEnd, setEnd] = useState(false)
  const events = useLoad(async () => (await call('listAuditEvents', { path, query: { ...query, per_page: PER_PAGE } })).data.data, [])
  const showMore = async () => {
    const last = more.at(-1) ?? events.value!.at(-1)!
    const { data } = await call('listAuditEvents', { path, query: { ...query, before: last.attributes.sequence, per_page: PER_PAGE } })
    setMore([...more, ...data.data])
    setEnd(data.data.length < PER_PAGE)
  }
  return (
    <>
      <Show of={events}>
        {(first) => {
          const all = [...first, ...more]
          const people = new Map([...known, ...all.map(({ attributes: { actor, actor_name } }) =>
            [`${actor.type}:${actor.id}`, actor_name] as const)])
          // The name of the person, token or rule that an event touched.
          const touched = ({ type, id }: Event['attributes']['resource']) => people.get(`${type.replace('-', '_')}:${id}`)
          return (
            <>
              <Table
                label='Events' head={['When', 'Who', 'What', 'Where', 'Details']} heading={2}
                empty={Object.values(filter).some(Boolean) ? 'No event matches the filter.' : 'There is no event that your role may see.'}
                rows={all.map(({ id, attributes: event }) => [
                  id, <Time at={event.occurred_at} />, whoIn(event),
                  <>{event.action}<small>{touched(event.resource)}</small></>, whereIn(event), <Details event={event} />
                ])}
              />
              {first.length === PER_PAGE && !isEnd && <Act name='audit.more' run={showMore} />}
            </>
          )
        }}
      </Show>
      <Section title='Events by day'>
        <Later name='audit.days'><Days organization={organization} filter={filter} /></Later>
      </Section>
      <Section title='Export'><Export organization={organization} filter={filter} /></Section>
    </>
  )
}

const ACTORS = { user: 'person', api_token: 'token', workload: 'workload', operator: 'the operator', system: 'the service' }
const whoIn = ({ actor: { type, id }, actor_name }: Event['attributes']): string => actor_name === null
  ? [ACTORS[type], id].filter((part) => part !== null).join(' ')
  : type === 'api_token' || type === 'workload' ? `${actor_name} (${ACTORS[type]})` : actor_name

/** The place that an event touched. */
const whereIn = ({ details, resource: { type } }: Event['attributes']): string =>
  PLACE.map((level) => details?.[level]).filter(Boolean).join(' / ') || (type === 'organization' ? 'the organization' : '')

/** What else is known of an event: each part wraps as a whole. */
function Details ({ event: { details, resource, ip } }: { event: Event['attributes'] }) {
  const parts: (readonly [name: string, value: unknown])[] = [
    ...Object.entries(details ?? {}).filter(([name, value]) => !OF_PLACE.has(name) && value !== null).map(([name, value]) => [name.replaceAll('_', ' '), value] as const),
    ...resource.id === null || details?.[`${resource.type}_id`] === resource.id ? [] : [[resource.type.replace(/[-_]/g, ' '), resource.id] as const],
    ...ip === null ? [] : [['from', ip] as const]
  ]
  return <ul class='events'>{parts.map(([name, value], i) => <li key={i}><span>{name}</span> {String(value)}</li>)}</ul>
}

const Days = ({ organization, filter }: { organization: string, filter: Filter }) => (
  <Load from={async () => (await call('countAuditEvents', { path: { organization }, query: filter as object })).data.data}>
    {(days) => <Chart title='Events per day' days={days.map(({ attributes: { date, count, is_capped } }) => ({ date, count, more: is_capped }))} />}
  </Load>
)

function Export ({ organization, filter }: { organization: string, filter: Filter }) {
  const save = async ({ format = 'csv' }: Fields) => {
    const accept = format === 'csv' ? 'text/csv' : 'application/x-ndjson'
    const parts: string[] = []
    let after: string | undefined
    for (let page = 0; page < MAX_EXPORT_PAGES; page++) {
      const query = { ...filter as object, ...(after !== undefined && { after: Number(after) }) }
      const { text, headers } = await call('exportAuditEvents', { path: { organization }, query, accept })
      // Only the first page of a CSV text keeps its line of names.
      parts.push(page > 0 && format === 'csv' ? text.slice(text.indexOf('\n') + 1) : text)
      after = /[?&]after=(\d+)/.exec(headers.get('link') ?? '')?.[1]
      if (after === undefined) break
    }
    download(`audit-${organization}.${format}`, parts.join(''), accept)
    say(after === undefined ? 'The events are exported.' : `Only the first ${MAX_EXPORT_PAGES * 1000} events are exported: choose a shorter time.`)
  }
  return (
    <Form name='audit.export' keep run={save}>
      <Field label='Format of the export' name='format' options={[['csv', 'CSV, for spreadsheets'], ['ndjson', 'JSON, an event in each line']]} />
    </Form>
  )
}
