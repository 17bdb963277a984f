import { useState } from 'preact/hooks'
import { call, firstPages, type Schemas } from '../api.ts'
import { sayChanged } from '../cell.tsx'
import { callLevel, changesBetween, inHistory, kindOf, levelOf, restoreBody, titleOf, type Level } from '../levels.ts'
import type { Place } from '../router.ts'
import { KeyGate, projectOf, reveal, Secret, type At, type Project } from '../secrets.tsx'
import { Act, changed, Changes, Check, Danger, Empty, Field, Form, Help, instantOf, saying, Section, Show, sizeOf, Table, Time, useLoad, type Fields } from '../ui.tsx'
import { present, shownName, type Comparison } from '../values.ts'

type Version = Schemas['Version']
interface RestorePlan { names: Comparison | null, etag: string | null, isNothing: boolean }
const PER_PAGE = 25

/** What was changed at a level, by whom and when, and restores of it. */
export function HistoryPage ({ organization, project: slug, target, environment }: Place) {
  const level: Level = { organization, project: slug, target, environment }
  const project = useLoad(() => projectOf(organization, slug), [])
  return (
    <>
      <h1>History of {titleOf(level)}</h1>
      <Help of='version' />
      <Show of={project}>
        {(project) => (
          <>
            <KeyGate level={level} project={project} />
            <Versions level={level} project={project} />
            {!project.isClient && project.format !== 'text'
              ? <><NameHistory level={level} /><Moment level={level} /></>
              : <p class='hint'>The history of a name and the names at a time are not available, because {project.isClient ? 'the server cannot read the documents of this project' : 'documents of the format text have no names'}.</p>}
            <RestoreProject level={level} />
            <Purge level={level} />
          </>
        )}
      </Show>
    </>
  )
}

const ACTION_WORDS: Record<Version['attributes']['action'], string> = {
  create: 'Created', update: 'Changed', delete: 'Deleted', restore: 'Restored', rotate: 'Key rotated', re_encrypt: 'Encrypted again'
}

function Versions ({ level, project }: At) {
  const [pages, setPages] = useState(1)
  const [chosen, setChosen] = useState<readonly string[]>([])
  const versions = useLoad(async () => firstPages(async (page) => versionsOf(level, page), pages), [pages])
  const choose = (id: string, isChosen: boolean) =>
    setChosen(isChosen ? [...chosen, id].slice(-2) : chosen.filter((one) => one !== id))
  return (
    <Section title='Versions'>
      <Help of='retention' />
      <Show of={versions}>
        {({ found, total }) => (
          <>
            {total === 0 && <Empty>This level has no versions yet. The first change records one.</Empty>}
            <ol class='timeline'>
              {found.map((version) => (
                <VersionItem
                  key={version.id} version={version} level={level} project={project}
                  isChosen={chosen.includes(version.id)} choose={(isChosen) => choose(version.id, isChosen)}
                />
              ))}
            </ol>
            {found.length < total && <Act name='history.more' run={() => setPages(pages + 1)} />}
            {total > 1 && <Compare level={level} project={project} chosen={chosen} />}
          </>
        )}
      </Show>
    </Section>
  )
}

function VersionItem ({ version: { id, attributes: version }, level, project, isChosen, choose }: At & {
  version: Version, isChosen: boolean, choose: (isChosen: boolean) => void
}) {
  const [plan, setPlan] = useState<RestorePlan>()
  const path = { organization: level.organization, version: id }
  const restore = async () => {
    const body = await restoreBody(level, id, project.isClient)
    const { etag } = await call('restoreVersion', { path, body, etag: plan!.etag })
    sayChanged(`Restored version ${id} of ${titleOf(level)}.`, level, etag, project.isClient)
  }
  return (
    <li class={version.locked ? 'locked' : ''}>
      <p>
        <strong>Version {id}: {ACTION_WORDS[version.action]}</strong> <Time at={version.created_at} /> by {version.created_by?.name ?? 'the operator'}, {sizeOf(version.size_bytes)}
        {version.metadata.restored_from !== null && `, from version ${version.metadata.restored_from}`}
      </p>
      {version.locked
        ? <p class='hint'>Locked: {version.locked_reason ?? 'it is older than the days of the plan'}.</p>
        : (
          <div class='actions'>
            <Check name='version' value={id} label={`Choose version ${id}`} checked={isChosen} onChange={choose} />
            <Act name='version.preview' description={id} run={async () => setPlan(await planRestore(level, project, id))} />
          </div>
          )}
      {plan !== undefined && (
        <div class='preview'>
          <p>Restoring version {id} changes {titleOf(level)}:</p>
          {plan.isNothing ? <p>Nothing: the level is like this already.</p> : <Changes of={plan.names} />}
          <Act name='version.restore' kind='main' description={id} run={restore} />
        </div>
      )}
    </li>
  )
}

/** What a restore would change: the service tells, or the browser if only clients have the key. */
async function planRestore (level: Level, project: Project, version: string): Promise<RestorePlan> {
  const body = await restoreBody(level, version, project.isClient)
  const { data } = await call('restoreVersion', { path: { organization: level.organization, version }, body, query: { dry_run: true } })
  const found = data.dry_run!.levels[0]!
  const [newest] = project.isClient && found.etag !== null ? (await versionsOf(level)).data : []
  const names = newest && await changesBetween(level, newest.id, version, true, project.format)
  return { names: names ?? found.names, etag: found.etag, isNothing: found.change === 'none' }
}

/** A page of the versions of a level, the newest first. */
async function versionsOf (level: Level, page = 1) {
  const path = { organization: level.organization }
  return (await call('listVersions', { path, body: { ...inHistory(level), page, per_page: PER_PAGE } })).data
}

/** The difference of two versions, with values on request. */
function Compare ({ level, project, chosen }: At & { chosen: readonly string[] }) {
  const [result, setResult] = useState<{ from: string, to: string, names: Comparison | null }>()
  const [from, to] = [...chosen].sort((a, b) => Number(a) - Number(b))
  const compare = async () => {
    if (from === undefined || to === undefined) throw new Error('Choose two versions first.')
    // Hides the former comparison, so that its values are not revealed by mistake.
    setResult(undefined)
    setResult({ from, to, names: await changesBetween(level, from, to, project.isClient, project.format) })
  }
  const source = (side: string) => `${level.organization} ${side}`
  const readSide = (side: 'from' | 'to', name: string) => async () =>
    present((await valuesOf(level, result!)).find((one) => one.name === name)?.[side])
  const showValues = async () => {
    const values = await valuesOf(level, result!)
    for (const side of ['from', 'to'] as const) {
      reveal(source(result![side]), values.flatMap((one) => one[side] === undefined ? [] : [[one.name, one[side]]]))
    }
  }
  return (
    <div>
      <Act name='history.compare' label={from !== undefined && to !== undefined ? `Compare versions ${from} and ${to}` : 'Compare two chosen versions'} run={compare} />
      {result !== undefined && (
        <div class='preview'>
          <h3>From version {result.from} to version {result.to}</h3>
          <Changes of={result.names} />
          {!project.isClient && result.names !== null && (
            <>
              <Act name='history.reveal' run={showValues} />
              <Table
                label='Values of both versions' head={['Name', `Version ${result.from}`, `Version ${result.to}`]}
                rows={[...result.names.added, ...result.names.changed, ...result.names.removed].sort().map((name) => [name, shownName(name), ...(['from', 'to'] as const).map((side) =>
                  result.names![side === 'from' ? 'added' : 'removed'].includes(name) ? 'missing' : <Secret source={source(result[side])} name={name} read={readSide(side, name)} />
                )])}
              />
            </>
          )}
        </div>
      )}
    </div>
  )
}

const valuesOf = async (level: Level, { from, to }: { from: string, to: string }) =>
  (await callLevel('compareSecrets', level, { query: { from, to, values: true } })).data.data.attributes.values ?? []

/** The changes of one name. */
function NameHistory ({ level }: { level: Level }) {
  const [rows, setRows] = useState<{ name: string, list: Schemas['NameChange'][], next: string | null, meta: string }>()
  const name = rows?.name
  const show = async (name: string, after?: string) => {
    const { data } = await callLevel('readNameHistory', level, { query: { name, ...(after !== undefined && { after }) } })
    const { unreadable, missing, next } = data.meta
    const meta = [unreadable > 0 && `${unreadable} versions cannot be read`, missing > 0 && `${missing} writes have no version`].filter(Boolean).join('; ')
    setRows({ name, list: [...after === undefined ? [] : rows!.list, ...data.data], next, meta })
  }
  const value = (id: string) => async () => {
    const { data } = await callLevel('readNameHistory', level, { query: { name: name!, values: true, after: String(Number(id) + 1) } })
    return present(data.data.find((one) => one.id === id)?.attributes.value ?? undefined)
  }
  return (
    <Section title='History of a name'>
      <Form name='history.name' run={({ name = '' }) => show(name)}><Field label='Name' name='name' required /></Form>
      {rows !== undefined && (
        <>
          <Table
            label={`Changes of ${name}`} head={['Version', 'Change', 'When', 'By', 'Value after it']} empty={`No version that can be read has changed ${name}.`}
            rows={rows.list.map(({ id, attributes: { change, created_at, created_by } }) => [
              id, id, change, <Time at={created_at} />, created_by?.name ?? 'the operator',
              change === 'removed' ? 'removed' : <Secret source={`history ${id}`} name={name!} read={value(id)} />
            ])}
          />
          {rows.meta !== '' && <p class='hint'>{rows.meta}.</p>}
          {rows.next !== null && <Act name='history.more' run={() => show(name!, rows.next!)} />}
        </>
      )}
    </Section>
  )
}

/** The names of the level at a moment, compared with the present ones. */
function Moment ({ level }: { level: Level }) {
  const [found, setFound] = useState<{ at: string, names: readonly string[], difference: Comparison }>()
  const show = async ({ at = '' }: Fields) => {
    const from = instantOf(at)
    const { data: { data }, headers } = await callLevel('readNames', level, { query: { merge: true } })
    // The clock of the service, because it refuses a time in the future.
    const to = new Date(headers.get('date') ?? Date.now()).toISOString()
    const difference = (await callLevel('compareSecrets', level, { query: { from, to, merge: true } })).data.data.attributes
    const kept = data.map(({ attributes: { name } }) => name).filter((name) => !difference.added.includes(name))
    setFound({ at: from, names: [...kept, ...difference.removed].sort(), difference })
  }
  const read = (at: string, name: string) => async () => {
    const { data: { data } } = await callLevel('readSecrets', level, { query: { decrypt: true, merge: 'true', at } })
    return present(data.attributes.merged?.[name])
  }
  return (
    <Section title='As it was'>
      <Help of='moment' />
      <Form name='history.moment' run={show}><Field label='Time' name='at' type='datetime-local' required /></Form>
      {found !== undefined && (
        <>
          <h3>Names at <Time at={found.at} /></h3>
          <Table
            label='Names at that time' head={['Name', 'Value then']} empty='There were no names then.'
            rows={found.names.map((name) => [name, shownName(name), <Secret source={`at ${found.at}`} name={name} read={read(found.at, name)} />])}
          />
          <p>Since then:</p>
          <Changes of={found.difference} />
        </>
      )}
    </Section>
  )
}

interface ProjectPlan { at: string, levels: Schemas['PlannedLevel'][], more: number }
const levelsOf = ({ levels }: ProjectPlan) =>
  JSON.stringify(levels.map(({ target, environment }) => [target, environment]).sort())

/** Brings all documents of the project back to a moment, with a preview. */
function RestoreProject ({ level: { organization, project } }: { level: Level }) {
  const [plan, setPlan] = useState<ProjectPlan>()
  const path = { organization, project }
  const planTo = async (at: string): Promise<ProjectPlan> => {
    const { data } = await call('restoreProject', { path, body: { at, confirmed: true }, query: { dry_run: true } })
    return { at, levels: data.dry_run!.levels, more: data.dry_run!.more }
  }
  const restoreTo = async (plan: ProjectPlan) => {
    // The plan has the ETags of all levels that the restore changes.
    if (JSON.stringify(await planTo(plan.at)) !== JSON.stringify(plan)) {
      throw new Error('The project has changed meanwhile, so nothing was restored. Preview a restore again.')
    }
    return call('restoreProject', { path, body: { at: plan.at, confirmed: true }, dangerous: ['secret:restore'] })
  }
  const restore = async () => {
    const { levels, more } = plan!
    const first = levels[0]!
    const { data: { message } } = await restoreTo(plan!)
    setPlan(undefined)
    // A restore to the millisecond before this one undoes it.
    const action = first.change === 'delete' ? 'delete' : 'restore'
    const { data } = await versionsOf(levelOf({ organization, slug: project }, first))
    const own = data.find(({ attributes }) => attributes.action === action)
    const undo = own && await planTo(new Date(Date.parse(own.attributes.created_at) - 1).toISOString())
    // Without an undo if somebody else has changed other levels already, or if the plan does not have all levels.
    const isOwn = more === 0 && undo?.more === 0 && levelsOf(undo) === levelsOf(plan!)
    changed(message, isOwn ? async () => { await restoreTo(undo!); changed('Undone: the project is as it was before.') } : undefined)
  }
  return (
    <Section title='Restore the whole project'>
      <p>Brings the documents of all levels of {project} back to a time. You see first what changes.</p>
      <Form name='restore-to.preview' run={async ({ at = '' }) => setPlan(await planTo(instantOf(at)))}><Field label='Time of the project' name='at' type='datetime-local' required /></Form>
      {plan !== undefined && (
        <div class='preview'>
          {plan.levels.length === 0 && <p>Nothing changes: all documents are in this state already.</p>}
          {plan.levels.map(({ target, environment, change, names }) => (
            <div key={`${target}/${environment}`}>
              <h3>{[target ?? project, environment].filter(Boolean).join(' / ')}: {change}</h3>
              <Changes of={names} />
            </div>
          ))}
          {plan.more > 0 && <p>And {plan.more} more levels.</p>}
          {plan.levels.length > 0 && <Act name='restore-to.restore' kind='danger' run={restore} />}
        </div>
      )}
    </Section>
  )
}

function Purge ({ level }: { level: Level }) {
  const purge = async () => saying(call('purgeVersions', {
    path: { organization: level.organization }, body: { ...inHistory(level), confirmed: true }, dangerous: ['secret:purge']
  }))
  return (
    <Section title='Purge'>
      <Danger name='history.purge' title={`Purge the history of ${titleOf(level)}?`} run={purge}>
        <p>All versions of this {kindOf(level)} are deleted. The present document stays. It cannot be undone.</p>
      </Danger>
    </Section>
  )
}
