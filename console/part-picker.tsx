import { useState } from 'preact/hooks'
import { call, firstPages, type Schemas } from './api.ts'
import { columnsOf, levelOf, type Column, type Level } from './levels.ts'
import { inOrder, rights } from './rights.ts'
import { wordsOfScopes, type Ability } from './scopes.ts'
import { Check, Field, Load, type Fields, type Option } from './ui.tsx'

// What tokens, rules and teams may do and where: the choice of scopes and of a part of the hierarchy, and their words.

export const ScopeChoices = ({ of, chosen, choose }: {
  of: readonly Ability[], chosen: readonly Ability[], choose: (chosen: Ability[]) => void
}) => (
  <div class='choices'>
    {of.map((scope) => (
      <Check
        key={scope} name='scope' value={scope} label={scope} checked={chosen.includes(scope)}
        onChange={(isOn) => choose(isOn ? [...chosen, scope] : chosen.filter((one) => one !== scope))}
      />
    ))}
  </div>
)

export const ScopesInWords = ({ of }: { of: readonly Ability[] }) => of.length < 4
  ? <>{wordsOfScopes(of)}</>
  : <details><summary>{of.length} permissions</summary>{wordsOfScopes(of)}</details>

/** The projects of the organization, also those of which the person sees only a part. */
async function projectsOf (organization: string): Promise<Option[]> {
  const { found } = await firstPages(async (page) =>
    (await call('listProjects', { path: { organization }, query: { page, per_page: 100, sort: 'name' } })).data)
  const all = [...rights.peek()?.projects ?? [], ...found.map(({ attributes }) => attributes)]
  return [...new Map(all.map(({ slug, name }) => [slug, name]))]
}

/**
 * Fields for a project and a level of it: `project`, and `level` with the slugs of the target and the environment.
 * `inherits`: also a field for the values from the levels above, if there are some, or always.
 */
export function PartPicker ({ organization, none, label = 'Project', inherits = false }: {
  organization: string, none: string, label?: string, inherits?: boolean | 'always'
}) {
  const [project, setProject] = useState('')
  const [level, setLevel] = useState('')
  return (
    <Load from={() => projectsOf(organization)}>
      {(found) => (
        <>
          <Field label={label} name='project' options={[['', none], ...found]} onInput={(chosen) => { setProject(chosen); setLevel('') }} />
          {project !== '' && <LevelField key={project} organization={organization} project={project} choose={setLevel} />}
          {project !== '' && (level !== '' || inherits === 'always') && inherits && (
            <Field
              label='Values from the levels above' name='inherited' value='true'
              options={[['true', 'Included where the levels are merged'], ['', 'Left out']]}
              hint='A program in an environment usually also needs the values of its target and of the project. They appear in merged reads alone, not as documents or versions.'
            />
          )}
        </>
      )}
    </Load>
  )
}

/** A level below its project as the value of a field. */
export const levelValue = ({ target, environment }: Level): string => [target, environment].filter(Boolean).join('/')

function LevelField ({ organization, project, choose }: Level & { choose: (level: string) => void }) {
  const load = async () => {
    const found: Column[] = []
    for await (const column of columnsOf({ organization, project })) found.push(column)
    return inOrder(found)
  }
  return (
    <Load from={load}>
      {(found) => (
        <Field
          label='Part of the project' name='level' onInput={choose}
          options={found.map((column) => [
            levelValue(levelOf({ organization, slug: project }, column)),
            column.level === 'project' ? 'The whole project' : column.level === 'target' ? column.name : `${column.target_name} / ${column.name}`
          ])}
        />
      )}
    </Load>
  )
}

type Part = Schemas['TeamRestriction']
type Names = Schemas['RestrictionNames']
export interface Parts { restrictions: readonly Part[], restriction_names: readonly Names[] }

/** The slug of a level stands for its name where a long list has none. */
export const partInWords = ({ project, target, environment, except_status, inherited }: Part, names: Names): string =>
  ([names.project ?? project, names.target ?? target, names.environment ?? environment].filter(Boolean).join(' / ') || 'the project') +
  (except_status === undefined ? '' : `, but not ${except_status}`) + (inherited === true ? ', with values from above' : '')

/** Restrictions in words; `whole`: what is reached without any. */
export const partsInWords = ({ restrictions, restriction_names: names }: Parts, whole: string): string =>
  restrictions.length === 0 ? whole : [...new Set(restrictions.map((part, i) => partInWords(part, names[i]!)))].join('; ')

/** Restrictions in words, where the project is known. */
export const partsOfProject = ({ restrictions, restriction_names }: Parts): string =>
  partsInWords({
    restrictions: restrictions.map((part) => ({ ...part, project: undefined })),
    restriction_names: restriction_names.map((names) => ({ ...names, project: null }))
  }, 'the whole project')

/** The restriction that a person has chosen; empty for the whole project. */
export function chosenPart ({ level = '', inherited, except_status = '' }: Fields) {
  const [target = '', environment] = level.split('/')
  const part = {
    ...(target !== '' && { target }),
    ...(environment !== undefined && { environment }),
    ...(except_status !== '' && { except_status: 'production' as const })
  }
  // A team keeps `inherited` unless the request says false.
  return { ...part, ...(Object.keys(part).length > 0 && { inherited: inherited === 'true' }) }
}
