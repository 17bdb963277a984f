import { useContext, useState } from 'preact/hooks'
import { ApiError, call, type Schemas } from '../api.ts'
import { BASE } from '../auth.ts'
import { chosenPart, partsInWords, PartPicker, ScopeChoices, ScopesInWords } from '../part-picker.tsx'
import { can } from '../rights.ts'
import { ALL_SCOPES, wordsOfScopes, type Ability } from '../scopes.ts'
import {
  Act, Danger, Field, Form, FormProblem, Help, InDialog, List, ListSearch, Load, saying, Table, Time, useList,
  useLoad, type Fields, type Option
} from '../ui.tsx'
import { areSame, CHECKS, claimsOf, isWorkloadScope, PLATFORMS, rowsOf, rowsOfPlatform, variablesOf, type Row } from '../workloads.ts'

type Rule = Schemas['WorkloadAttributes']
type Body = Schemas['CreateWorkloadBody']
type Preset = NonNullable<Rule['preset']>
type Event = Schemas['AuditEvent']
interface OfRule { organization: string, id: string, rule: Rule }

const EVENTS = 10
const LOGINS = 100

export function WorkloadsPage ({ organization }: { organization: string }) {
  const path = { organization }
  const [search, setSearch] = useState('')
  const rules = useList(async (page) =>
    (await call('listWorkloads', { path, query: { search, page, per_page: 25 } })).data, [search])
  const logins = useLoad(async () =>
    (await call('listAuditEvents', { path, query: { action: 'workload.login', per_page: LOGINS } })).data.data, [])
  return (
    <>
      <Help text='A workload is a build, a pod or a virtual machine. A rule says which tokens of its platform it exchanges for access, so that no API token has to be stored there.' />
      <div class='toolbar'>
        <ListSearch label='Search by name' change={setSearch} />
        <InDialog name='workload.create' kind='main' title='Create a rule'>
          {(close) => <RuleForm name='workload.create' save={(body) => create(organization, body)} {...{ organization, close }} />}
        </InDialog>
      </div>
      <List of={rules} empty={search === '' ? 'There is no rule. With one, a build or a pod signs in with the token of its platform, and you store no API token there.' : 'No rule matches.'}>
        {(found) => (
          <Table
            label='Rules' head={['Name', 'Accepts', 'May', 'Where', 'State', 'Last login', 'Change']}
            rows={found.map(({ id, attributes: rule }) => [
              id,
              ...cellsOf(rule),
              <LastLogin events={logins.value} id={id} />,
              <Change {...{ organization, id, rule }} />
            ])}
          />
        )}
      </List>
    </>
  )
}

const whereOf = (rule: Rule): string => partsInWords(rule, 'the whole organization')

const cellsOf = (rule: Rule) => [
  <><strong>{rule.name}</strong>{rule.description && <small>{rule.description}</small>}</>,
  <>
    {rule.preset === null ? 'Tokens' : PLATFORMS[rule.preset].name} of {rule.issuer}
    <ul class='events'>{rowsOf(rule.claims).map(({ name, value }, i) => <li key={i}><span>{name}</span> {value}</li>)}</ul>
  </>,
  <ScopesInWords of={rule.scopes} />,
  whereOf(rule),
  rule.enabled ? 'Enabled' : <span class='attention'>Disabled</span>
] as const

function LastLogin ({ events, id }: { events: readonly Event[] | undefined, id: string }) {
  if (events === undefined) return null
  const last = events.find(({ attributes }) => attributes.resource.id === id)
  if (last !== undefined) return <Time at={last.attributes.occurred_at} />
  return <>{events.length < LOGINS ? 'never' : `not among the last ${LOGINS} of all rules`}</>
}

const create = (organization: string, body: Body) => saying(call('createWorkload', {
  path: { organization }, body, dangerous: ['api-token:create', ...body.scopes]
}), `Created the rule ${body.name}. “Use and test” has what the platform needs.`)

/** Changes a rule: the person needs all that it allows, before and after. */
const update = ({ organization, id, rule }: OfRule, body: Schemas['UpdateWorkloadBody'], text: string, etag?: string) => saying(call('updateWorkload', {
  path: { organization, workload: id }, body, etag, dangerous: ['api-token:update', ...rule.scopes, ...body.scopes ?? []]
}), text)

function Change (of: OfRule) {
  const { organization, id, rule: { name, enabled, scopes } } = of
  const path = { organization, workload: id }
  const remove = async () => saying(call('deleteWorkload', { path }), `Deleted the rule ${name}.`)
  return (
    <>
      <InDialog name='workload.show' description={name} title={`Use and test ${name}`}>{() => <OpenRule {...of} />}</InDialog>
      {can(scopes) && (
        <>
          <InDialog name='workload.edit' description={name} title={`Change ${name}`}>{(close) => <Edit {...of} close={close} />}</InDialog>
          {!enabled && <Act name='workload.enable' description={name} run={() => update(of, { enabled: true }, `Enabled the rule ${name}.`)} />}
          {enabled && (
            <Danger name='workload.disable' kind='' title={`Disable ${name}?`} description={name} run={() => update(of, { enabled: false }, `Disabled the rule ${name}.`)}>
              <p>Its access tokens end at once, and it accepts no other token until you enable it.</p>
            </Danger>
          )}
        </>
      )}
      <Danger name='workload.delete' title={`Delete ${name}?`} description={name} run={remove}>
        <p>Its access tokens end at once. A new rule has another public id.</p>
      </Danger>
    </>
  )
}

/** Sends what the person changed: a new name alone does not end the access tokens of the rule. */
const Edit = ({ close, ...of }: OfRule & { close: () => void }) => (
  <Load from={() => call('getWorkload', { path: { organization: of.organization, workload: of.id } })}>
    {({ data: { data: { attributes: before } }, etag }) => {
      const save = async (body: Body) => {
        const changes = Object.fromEntries(Object.entries(body).filter(([name, value]) =>
          JSON.stringify(value) !== JSON.stringify(before[name as keyof Rule])))
        if (Object.keys(changes).length === 0) return
        return update({ ...of, rule: before }, changes, `Changed the rule ${body.name}.`, etag)
      }
      return <RuleForm name='workload.update' organization={of.organization} {...{ before, save, close }} />
    }}
  </Load>
)

const PRESET_OPTIONS: readonly Option[] = [...Object.entries(PLATFORMS).map(([preset, { name }]) => [preset, name] as const), ['', 'Another issuer of OpenID Connect']]
const SECRETS: readonly Ability[] = ['secret:read', 'secret:decrypt']

function RuleForm ({ name, organization, before, save, close }: {
  name: 'workload.create' | 'workload.update', organization: string, before?: Rule, save: (body: Body) => Promise<void>, close: () => void
}) {
  const [preset, setPreset] = useState<Preset | ''>(before === undefined ? 'github-actions' : before.preset ?? '')
  const [rows, setRows] = useState<readonly Row[]>(() => rowsOfPlatform(preset, rowsOf(before?.claims ?? {})))
  const [scopes, setScopes] = useState<readonly Ability[]>(before?.scopes ?? SECRETS)
  const [where, setWhere] = useState(before === undefined ? 'part' : '')
  const platform = preset === '' ? undefined : PLATFORMS[preset]
  const choose = (chosen: string) => {
    setPreset(chosen as Preset | '')
    setRows(rowsOfPlatform(chosen as Preset | '', rows))
  }
  const change = (at: number, part: Partial<Row>) => setRows(rows.map((row, i) => i === at ? { ...row, ...part } : row))
  const run = async ({ name = '', description, issuer = '', jwks = '', audience, lifetime, single_use, max_assertion_age, project = '', ...fields }: Fields) => {
    if (where === 'part' && project === '') throw new Error('Choose a project first.')
    // Claims that stay are sent as they were, so that a list with one value is no change.
    const isSame = before !== undefined && areSame(rows, rowsOf(before.claims))
    await save({
      name,
      description: description || null,
      preset: preset || null,
      issuer,
      jwks: keysOf(jwks),
      claims: isSame ? before.claims : claimsOf(rows),
      scopes: [...scopes] as Body['scopes'],
      ...(where !== '' && { restrictions: where === 'part' ? [{ project, ...chosenPart(fields) }] : [] }),
      ...(audience && { audience }),
      ...(lifetime && { lifetime: Number(lifetime) }),
      ...(single_use && { single_use: single_use === 'true' }),
      ...(max_assertion_age && { max_assertion_age: Number(max_assertion_age) })
    })
    close()
  }
  return (
    <Form name={name} run={run}>
      <Field label='Name of the rule' name='name' required value={before?.name} />
      <Field label='Description, if you like' name='description' value={before?.description ?? ''} />
      <Field label='Platform' name='preset' value={preset} options={PRESET_OPTIONS} onInput={choose} />
      <Field key={preset} label='Issuer' name='issuer' required value={before?.issuer ?? /^https:[^ ,]+(?=,| for |$)/.exec(platform?.issuer ?? '')?.[0]} hint={`The “iss” of its tokens, an https URL${platform === undefined ? '' : `: ${platform.issuer}`}.`} />
      <ClaimFields {...{ preset, rows, change }} add={() => setRows([...rows, { name: '', kind: 'text', value: '' }])} />
      <fieldset>
        <legend>What may it do?</legend>
        <details>
          <summary>{wordsOfScopes(scopes)}</summary>
          <ScopeChoices
            of={ALL_SCOPES.filter((one) => isWorkloadScope(one) && (can([one]) || scopes.includes(one)))}
            chosen={scopes} choose={setScopes}
          />
        </details>
      </fieldset>
      <fieldset>
        <legend>Where?</legend>
        <Field
          label='Place' name='where' value={where} onInput={setWhere}
          options={[...before === undefined ? [] : [['', `As before: ${whereOf(before)}`] as const], ['part', 'In a project, or a part of it'], ['all', 'In the whole organization']]}
        />
        {where === 'part' && <PartPicker organization={organization} none='Choose one' inherits />}
      </fieldset>
      <Field label='Seconds for which an access token is valid' name='lifetime' value={String(before?.lifetime ?? 900)} hint='300 to 3600.' />
      <Field
        label='Can a token of the platform be used again?' name='single_use' value={before === undefined ? '' : String(before.single_use)}
        options={[...before === undefined ? [['', 'As the platform needs'] as const] : [], ['false', 'Yes, until it expires'], ['true', 'No']]}
      />
      <Field label='Oldest token of the platform, in seconds' name='max_assertion_age' value={before === undefined ? '' : String(before.max_assertion_age)} hint={before === undefined ? '60 to 86400. Empty: as the platform needs.' : '60 to 86400.'} />
      <Field label='Audience' name='audience' value={before?.audience} hint={before === undefined ? 'Must be an “aud” of the token. Empty: the address of this service.' : 'Must be an “aud” of the token.'} />
      <Field
        label='Public keys of the issuer, if this service cannot reach it' name='jwks' rows={3} value={before?.jwks == null ? '' : JSON.stringify(before.jwks)}
        hint='A JWK Set, such as the output of kubectl get --raw /openid/v1/jwks. Empty: the service gets the keys from the issuer.'
      />
    </Form>
  )
}

function keysOf (text: string): Body['jwks'] {
  if (text.trim() === '') return null
  try { return JSON.parse(text) as Body['jwks'] } catch { throw new Error('The public keys are no JSON text.') }
}

function ClaimFields ({ preset, rows, change, add }: {
  preset: Preset | '', rows: readonly Row[], change: (at: number, part: Partial<Row>) => void, add: () => void
}) {
  const error = useContext(FormProblem)
  const problems = error instanceof ApiError
    ? Object.entries(error.errors).filter(([path]) => path.split('.')[0] === 'claims')
    : []
  const ids = preset === '' ? [] : PLATFORMS[preset].ids
  return (
    <fieldset>
      <legend>What must the token say?</legend>
      <p class='help'>
        {ids.length > 0 && `Enter ${ids.length === 1 ? ids[0] : `one of ${ids.join(', ')}`}: the platform never gives ${ids.length === 1 ? 'it' : 'them'} to another workload. `}
        Values are compared exactly; ref can end in /*. A name on several lines may have any of their values.
        Empty lines do not count.
      </p>
      {rows.map(({ name, kind, value, isFixed }, i) => (
        <div key={`${preset} ${i}`} class='row'>
          {isFixed !== true && <Field label={`Name of claim ${i + 1}`} name={`claim ${i}`} value={name} onInput={(name) => change(i, { name })} />}
          <Field label={isFixed === true ? name : `Value of claim ${i + 1}`} name={`value ${i}`} value={value} onInput={(value) => change(i, { value })} />
          {isFixed !== true && (
            <Field
              label={`Type of claim ${i + 1}`} name={`kind ${i}`} value={kind} onInput={(kind) => change(i, { kind: kind as Row['kind'] })}
              options={[['text', 'Text'], ['number', 'Number'], ['boolean', 'true or false, not in quotes']]}
            />
          )}
        </div>
      ))}
      {/* The name by which the form finds the errors of claims. */}
      <div class='field'><input type='hidden' name='claims' /></div>
      {problems.map(([path, messages]) => <p key={path} class='problem' role='alert'>{[path.slice('claims.'.length), ...messages].filter(Boolean).join(': ')}</p>)}
      <Act name='workload.claim' run={add} />
    </fieldset>
  )
}

function OpenRule ({ organization, id, rule }: OfRule) {
  const { name, preset, public_id } = rule
  const [check, setCheck] = useState<keyof typeof CHECKS | null>()
  const variables = variablesOf(rule, BASE.href.replace(/\/$/, ''))
  const test = async ({ token = '' }: Fields) => {
    setCheck(undefined)
    const { data } = (await call('testWorkload', { path: { organization, workload: id }, body: { token: token.trim() } })).data
    setCheck(data.check)
  }
  return (
    <>
      <p>The public id: <code>{public_id}</code> <Act name='workload.copy' label='Copy public id' kind='plain' run={() => navigator.clipboard.writeText(public_id)} /></p>
      <p>For strongroom, set these variables{preset === null ? '' : ` in ${PLATFORMS[preset].name}`}. None of them is a secret.</p>
      <pre tabIndex={0}>{variables}</pre>
      <Act name='workload.copy' run={() => navigator.clipboard.writeText(variables)} />
      {preset === 'github-actions' && <p class='hint'>The job also needs <code>permissions: id-token: write</code>.</p>}
      <h3>Test a token</h3>
      <Form name='workload.test' keep run={test}>
        <Field label='Token of the platform' name='token' rows={3} required hint='The test makes no access token, does not use the token up, and stores it nowhere.' />
      </Form>
      {check !== undefined && (
        <p role='status' class={check === null ? '' : 'attention'}>
          {check === null ? `Accepted: ${name} exchanges this token.` : `Refused: ${CHECKS[check]}`}
        </p>
      )}
      <h3>Last logins and refusals</h3>
      <Logins {...{ organization, id, name }} />
    </>
  )
}

function Logins ({ organization, id, name }: Record<'organization' | 'id' | 'name', string>) {
  const load = async () => {
    const found = await Promise.all((['workload.login', 'workload.refuse'] as const).map(async (action) =>
      (await call('listAuditEvents', { path: { organization }, query: { action, resource: `workload:${id}`, per_page: EVENTS } })).data.data))
    return found.flat().sort((a, b) => b.attributes.sequence - a.attributes.sequence)
  }
  return (
    <Load from={load}>
      {(events) => (
        <Table
          label={`Logins of ${name}`} head={['When', 'What', 'Details', 'From']} empty='No workload has used this rule yet.'
          rows={events.map(({ id, attributes: { occurred_at, action, details, ip } }) => [
            id, <Time at={occurred_at} />, action === 'workload.login' ? 'Login' : 'Refused', textOf(details ?? {}), ip
          ])}
        />
      )}
    </Load>
  )
}

function textOf ({ subject, run, check, claims }: NonNullable<Event['attributes']['details']>): string {
  const said = [subject, run != null && `run ${run}`, claims]
  return [check != null && (CHECKS[check as keyof typeof CHECKS] ?? check), ...said].filter(Boolean).join(' · ')
}
