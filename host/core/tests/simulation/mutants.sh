#!/bin/bash
# Shows that the simulation works: takes one guard after another out of the core and plays the simulation against what is
# left. Each has to be noticed, by a scene or by a seed.
#
#   mutants.sh           all of them
#   mutants.sh WORD      those whose title has the word
#
# The list at the end is the record of what is guarded and what notices that it is not: `by` names a scene, or the seed of a
# schedule (`k` before it where that is one with boxes and with what is retained), which is played first and alone. Where that does not notice any more (another draw makes other schedules)
# everything is played, and the table says what does. Fails when an edit does not fit the source exactly once, when what is
# left does not compile, and when nothing notices.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
work=${CARGO_TARGET_DIR:-$root/target}/mutants
tree=$work/tree src=$work/tree/host/core/src
export CARGO_TARGET_DIR=$work/target CARGO_TERM_COLOR=never CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_DEBUG=0 SANDBAR_FIRST=1
unset SANDBAR_SEED SANDBAR_SCHEDULES
only=${1:-}
missed=0 played=0 output=$work/output

# A copy of its own, so that nobody who edits or builds meanwhile is in the way.
rm -rf "$tree" "$work/src"
mkdir -p "$tree"
tar -C "$root" --exclude=./target --exclude=./.git -cf - . | tar -C "$tree" -xmf -
cp -r "$tree/host/core/src" "$work/src"

# `fails [scene|seed]`: plays that alone, or everything; whether something was noticed.
fails() {
  local filter=(--skip the_same_seed)
  case ${1:-} in
    '') ;;
    k[0-9]*) filter=(--exact keeping_schedules) && local -x SANDBAR_SEED=${1#k} ;;
    *[!0-9]*) filter=("::$1") ;;
    *) filter=(--exact schedules) && local -x SANDBAR_SEED=$1 ;;
  esac
  local status=0
  (cd "$tree" && timeout 600 cargo test --quiet --locked -p sandbar-core --test simulation -- "${filter[@]}") \
    >"$output" 2>&1 || status=$?
  # 101 is a test that failed; a run that never ends has noticed something too.
  [ "$status" = 101 ] || [ "$status" = 124 ]
}

builds() {
  (cd "$tree" && cargo test --quiet --locked -p sandbar-core --test simulation --no-run) >"$output" 2>&1
}

# What the output of a run names: scenes and the first seed.
culprits() {
  sed -nE 's/^ *(test )?scenes::[a-z]+::([a-z0-9_]+)( \.\.\. FAILED)?$/\2/p
    s/^SANDBAR_SEED=([0-9]+) .* keeping_schedules .*/seed k\1/p; s/^SANDBAR_SEED=([0-9]+) .* schedules .*/seed \1/p' "$output" |
    sort -u | paste -sd' '
}

# `mutant TITLE BY FILE OLD NEW [FILE OLD NEW]…`: in each file the text OLD, which is there once, becomes NEW.
mutant() {
  local title=$1 by=$2 file text rest caught
  shift 2
  [[ $title == *"$only"* ]] || return 0
  local changed=()
  while [ $# -gt 0 ]; do
    file=$1.rs
    text=$(cat "$src/$file")
    rest=${text#*"$2"}
    if [ "$rest" = "$text" ] || [ "${rest#*"$2"}" != "$rest" ]; then
      printf '%s: this is not in %s exactly once:\n%s\n' "$title" "$file" "$2" >&2
      exit 1
    fi
    printf '%s\n' "${text%%"$2"*}$3$rest" >"$src/$file"
    changed+=("$file")
    shift 3
  done
  if ! builds; then
    printf '%s: what is left does not compile\n' "$title" >&2
    cat "$output" >&2
    exit 1
  fi
  if [ -n "$by" ] && fails "$by"; then
    caught=$by
    [[ ${by#k} == *[!0-9]* ]] || caught="seed $by"
  elif fails; then
    caught="$(culprits) (the list says ${by:-nothing})"
  else
    caught="NOT CAUGHT"
    missed=$((missed + 1))
  fi
  played=$((played + 1))
  printf '%-68s %s\n' "$title" "$caught"
  for file in "${changed[@]}"; do
    cp "$work/src/$file" "$src/$file"
  done
}

if ! builds || fails; then
  echo "nothing is taken out, and it fails:" >&2
  cat "$output" >&2
  exit 1
fi
printf '%-68s %s\n' "what is taken out" "noticed by"

# The registry: one flight at a time, and what a release does to it.

mutant "work is looked at again under the entry's lock" "210" \
  registry '        still()?;
' ''

mutant "a release wins over the flight that it met" "a_release_ends_every_wait" \
  registry '                        continue;
                    }
                }
                _ => break,' '                        continue;
                    }
                }
                _ => {}'

mutant "a release stops what is being made" "who_waits_for_a_host_that_goes_down_may_try_again" \
  registry '                State::Making(flight) => {
                    flight.cancel.cancel();' '                State::Making(flight) => {'

mutant "a release waits until the names are free" "4" \
  registry '                    *state = State::LettingGo(flight.done.clone());' '                    *state = State::Absent;'

mutant "a caller that goes away only detaches" "what_nobody_waited_for_is_found_by_the_next_call" \
  registry '            let wait = listen(&mut outcome, progress, listener);' '            let _stop = match &*entry.lock() {
                State::Making(flight) => Some(flight.cancel.clone().drop_guard()),
                _ => None,
            };
            let wait = listen(&mut outcome, progress, listener);'

mutant "what a flight held is let go when it was released" "a_release_ends_every_wait" \
  registry '            self.registry.let_go_all(&self.owner, &live).await;
        }
        self.registry.vacate' '            drop(live);
        }
        self.registry.vacate'

mutant "how many may be live" "no_more_are_live_than_may_be" \
  registry '(n < max).then_some(n + 1)' 'Some(n.min(n + max) + 1)'

mutant "who was released before it was known what there is" "what_is_released_while_the_host_starts_is_not_adopted" \
  registry '            early.insert(agent.clone());' '            let _ = early;'

mutant "only what its agent works on is adopted" "a_kill_between_the_end_of_work_and_its_release_leaves_nothing" \
  registry 'released || !still() ||' 'released ||'

mutant "a lease that is fresh keeps a sandbox" "what_nobody_waited_for_is_found_by_the_next_call" \
  registry 'matches!(state, State::Live(_)) && self.lease_is_over(entry, grace)' \
  'matches!(state, State::Live(_)) && (true || self.lease_is_over(entry, grace))'

mutant "new work ends what was made for the old" "2" \
  host '        if new {' '        if !new {'

mutant "new work ends what earlier work left, which is not known yet" "new_work_has_nothing_of_the_work_before_a_kill" \
  host '        if new {' '        if new && self.status(agent).state != "absent" {'

mutant "the end of work ends its sandbox" "1" \
  host '        if ended.is_some() || self' '        if ended.is_none() && self'

# One round: is what is held sound, what has to be made, and what has to go.

mutant "a hit is looked at live" "0" \
  ensure 'Some(live) => self.check(owner, live).await?,' 'Some(_) => true,'

mutant "a hit has to run and not be paused" "what_ends_after_it_was_confirmed_is_not_handed_out" \
  ensure 'u.state == UnitState::Running && u.address' '(u.state == u.state || u.state == UnitState::Running) && u.address'

mutant "a hit has to have its name" "24" \
  ensure 'u.id == serving.id && u.name == serving.name' 'u.id == serving.id'

mutant "a hit that may have been started again is looked at more closely" "1" \
  ensure 'is_ok_and(|unit| unit.run == serving.run)' 'is_ok_and(|unit| unit.run == serving.run || true)'

mutant "what ended is doubted" "1" \
  host 'if self.names.are_ours(&labels) => self.registry.doubt(&id),' 'if self.names.are_ours(&labels) => drop(id),'

mutant "nothing is certain while nobody tells what ends" "what_is_made_and_started_again_while_nobody_tells_is_made_anew" \
  host 'Some(Event::Interrupted) => self.registry.doubt_all(true),' 'Some(Event::Interrupted) => {}'

mutant "what may have ended unseen is doubted" "1328" \
  ensure '*self.certain() = Certain { ids: BTreeSet::new(), unseen };' 'self.certain().unseen = unseen;'

mutant "a doubt stays until it is cleared" "1931" \
  ensure '        self.doubt(&serving.id);' ''

mutant "another project's sandbox goes first" "what_was_made_for_another_project_goes_before_anything_is_made" \
  ensure 'held.take_if(|live| live.project != want.project)' 'held.take_if(|_| false)'

mutant "how often a sandbox may be made anew" "a_sandbox_is_made_anew_so_often_and_no_more" \
  ensure '        self.may_remake(entry, held.as_ref(), &change)?;' '        let _ = self.may_remake(entry, held.as_ref(), &change);'

mutant "one more look after something was made" "what_ends_after_it_was_confirmed_is_not_handed_out" \
  ensure 'Ok(!committed.is_empty())' 'Ok(false)'

mutant "what is not opted in any more goes" "29" \
  ensure 'self.let_go(&dropped).await;' 'drop(dropped);'

mutant "a name that is somebody else's is known before anything is made" "nothing_is_made_for_a_name_that_is_somebody_elses" \
  ensure '            self.name_is_free(owner, &service).await?;' ''

mutant "a failed service takes the others of its round along" "a_panic_over_one_service_leaves_nothing_of_the_others" \
  ensure '        join_all(made.iter().map(|(_, m)| {
            let folder = m.serving.folder().filter(|_| !owner.retains());
            self.leaving.discard(&m.id, false, folder)
        }))
        .await;
        Err(error)' '        Err(error)'

mutant "a failed commit takes those that were still to come along" "26" \
  ensure '                join_all(
                    made.map(|(_, m)| async move { self.leaving.discard(&m.id, false, m.serving.folder()).await }),
                )
                .await;' '                drop(made);'

mutant "a failed commit takes those before it along" "26" \
  ensure 'self.let_go(&undone).await;' 'drop(undone);'

mutant "what could not be given its name is removed" "26" \
  ensure '            self.leaving.discard(&id, false, serving.folder().filter(|_| !owner.retains())).await;
            self.health.note(&e);' '            self.health.note(&e);'

mutant "a predecessor is let go" "a_predecessor_that_lost_its_name_goes_too" \
  ensure '            self.leaving.let_go(&old.id, old.folder()).await;
            crash::here("predecessor let go");' '            let _ = old;'

mutant "a stale container of this installation gives the name" "a_stale_container_with_the_name_is_let_go_and_is_never_told_to_be_somebody_elses" \
  ensure 'if self.is_ours(holder) =>' 'if !self.is_ours(holder) && self.is_ours(holder) =>'

mutant "a container of another installation keeps the name" "nothing_is_made_for_a_name_that_is_somebody_elses" \
  ensure 'self.names.are_ours(&unit.labels)' 'self.names.are_ours(&unit.labels) || true'

# Making one container.

mutant "a failed put is discarded" "17" \
  provision 'self.leaving.discard(&plan.name, suspect, goes).await;' 'let _ = suspect;'

mutant "a put that may still happen is suspect" "25" \
  provision 'let suspect = matches!(' 'let suspect = false && matches!('

mutant "a put is waited for, whoever gives up" "a_release_ends_every_wait" \
  provision 'match self.runtime.put(&plan, progress).await {' 'match tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(NotMade::Cancelled),
            unit = self.runtime.put(&plan, progress) => unit,
        } {'

mutant "what could not be confirmed is discarded" "a_release_ends_every_wait" \
  provision '            Ok(Err(not_made)) => {
                self.leaving.discard(&unit.id, false, goes).await;' '            Ok(Err(not_made)) => {'

mutant "what a panic leaves is discarded" "a_panic_over_what_runs_already_leaves_nothing" \
  provision '            Err(panic) => {
                self.leaving.discard(&unit.id, false, goes).await;' '            Err(panic) => {'

mutant "features are confirmed before anything gets its name" "0" \
  provision '            self.steps("setup", &self.checked.recipe().setup).await?;
            self.steps("verify", &self.checked.recipe().verify).await' \
  '            self.steps("setup", &self.checked.recipe().setup).await'

# The books of what was let go.

mutant "a removal is tried again until it succeeds" "17" \
  leaving 'Err(e) => tracing::warn!(container = short(&key), error = %e, "not removed yet"),' 'Err(_) => break this.strike(&key),'

mutant "a discard that failed goes on behind" "17" \
  leaving '_ => self.remove_behind(name.to_owned(), until, folder),' '_ => self.strike(name),'

mutant "what may still be made is removed until it cannot be" "25" \
  leaving 'Ok(()) if suspect_until.is_none_or(|until| Instant::now() >= until) => {' \
  'Ok(()) if suspect_until.is_none_or(|until| Instant::now() < until || until <= Instant::now()) => {'

mutant "what could not be renamed is removed all the same" "82" \
  leaving 'Err(e) => tracing::warn!(container = short(id), error = %e, "could not rename what is let go"),' \
  'Err(_) => return self.strike(id),'

# The start.

mutant "what was being made when its host was killed is removed" "what_was_half_made_is_removed_by_the_next_start" \
  recover '                registry.leaving().let_go(&unit.id, folder_that_goes(&unit.labels, &names)).await;' ''

mutant "nothing is concluded from a listing that failed" "nothing_is_concluded_from_what_docker_did_not_say_when_the_host_starts" \
  recover 'let mut units = ensure.runtime.list(&labels).await?;' \
  'let mut units = ensure.runtime.list(&labels).await.unwrap_or_default();'

mutant "the start looks at the labels again" "what_a_listing_answers_beside_what_was_asked_is_left_alone" \
  recover 'units.retain(|unit| names.are_ours(&unit.labels));' ''

mutant "nothing is concluded from a look that failed" "nothing_is_concluded_from_what_docker_did_not_say_when_the_host_starts" \
  kept 'RuntimeError::Unreachable(_) | RuntimeError::Deadline(_) => Self::Known(e),
            e' 'e'

mutant "what does not confirm its features any more is not adopted" "what_was_started_again_while_no_host_was_there_has_lost_its_features_and_goes" \
  kept 'confirm.still_good(patience).await,' 'confirm.still_good(patience).await.or(Ok(None)),'

mutant "a container serves whom its labels name" "a_name_alone_makes_nobody_an_owner" \
  recover 'if text(label::OWNER)? != owner.label(names) {' 'if text(label::OWNER)? == "" {'

# The janitor.

mutant "what nobody knows is left alone for the grace" "what_is_created_after_its_host_was_killed_is_swept" \
  janitor 'now.duration_since(*seen) >= self.pace.grace' 'now.duration_since(*seen) >= Duration::ZERO'

mutant "ages are measured by the host's own clock" "what_is_created_after_its_host_was_killed_is_swept" \
  janitor 'now.duration_since(*seen) >= self.pace.grace' \
  'seen <= &now && unit.created.elapsed().unwrap_or_default() >= self.pace.grace'

mutant "what nobody knows is removed at last" "what_is_created_after_its_host_was_killed_is_swept" \
  janitor 'now.duration_since(*seen) >= self.pace.grace' 'now.duration_since(*seen) >= self.pace.grace * 1000'

mutant "the janitor looks at the labels again" "what_a_listing_answers_beside_what_was_asked_is_left_alone" \
  janitor 'if !stale || !self.names.are_ours(&unit.labels) {' 'if !stale {'

mutant "a sweep concludes nothing from a listing that failed" "who_runs_needs_no_lease_and_who_does_not_loses_what_it_had" \
  janitor 'self.runtime.list(&[]).await?;' 'self.runtime.list(&[]).await.unwrap_or_default();'

mutant "what is being made is not swept" "what_takes_long_to_make_is_not_swept" \
  janitor '.is_some_and(|o| changing.contains(o))' '.is_some_and(|o| changing.contains(o) && false)'

mutant "an agent that runs keeps its sandbox without a lease" "who_runs_needs_no_lease_and_who_does_not_loses_what_it_had" \
  janitor 'if !agents.contains(owner.agent.as_str()) {' 'if !agents.contains(owner.agent.as_str()) || true {'

mutant "an owner that is gone loses its sandbox" "who_runs_needs_no_lease_and_who_does_not_loses_what_it_had" \
  janitor 'if !agents.contains(owner.agent.as_str()) {' 'if !agents.contains(owner.agent.as_str()) && false {'

# Agents whose container ended.

mutant "the end of an agent's container is told" "an_agent_whose_container_ended_keeps_its_sandbox_if_it_comes_back" \
  host 'departed.ended(&id, &name, &labels)' 'drop((id, name, labels))'

mutant "an agent has time to come back" "an_agent_whose_container_ended_keeps_its_sandbox_if_it_comes_back" \
  departed 'sleep_until(at + self.respawn)' 'sleep_until(at)' \
  departed 'now >= *last + self.respawn' 'now >= *last'

mutant "who came back and ended once more has time again" "an_agent_whose_container_ended_keeps_its_sandbox_if_it_comes_back" \
  departed '        over.retain(|((_, agent), _)| !self.since.keys().any(|(_, other)| other == agent));' ''

mutant "a container that ended once more gives time again" "an_agent_whose_container_ended_keeps_its_sandbox_if_it_comes_back" \
  departed '.or_insert((now, now)).1 = now;' '.or_insert((now, now));'

mutant "an agent that came back keeps its sandbox" "an_agent_whose_container_ended_keeps_its_sandbox_if_it_comes_back" \
  departed '.filter(|((_, agent), _)| !running.contains(agent.as_str()))' '.filter(|((_, agent), _)| agent.as_str() != "" || running.is_empty())'

mutant "a listing that failed says of no agent that it is gone" "an_agent_whose_container_ended_keeps_its_sandbox_if_it_comes_back" \
  departed 'Err(e) => return tracing::warn!(error = %e, "whether agents came back cannot be told; the sweep will"),' \
  'Err(_) => Vec::new(),'

mutant "an agent that called since keeps its sandbox" "an_agent_whose_container_ended_keeps_its_sandbox_if_it_comes_back" \
  registry '!Self::called_since(entry, since)' '(!Self::called_since(entry, since) || true)'

# Boxes: what is in use stays, and a command that lost its box gets another one once.

mutant "a box in use makes no room" "a_box_in_use_is_not_evicted_and_who_finds_all_busy_is_refused" \
  registry '            matches!(state, State::Live(_)) && entry.in_flight.load(Ordering::SeqCst) == 0
        };
        let mut candidates' '            matches!(state, State::Live(_)) && (true || entry.in_flight.load(Ordering::SeqCst) == 0)
        };
        let mut candidates'

mutant "a box in use is not idle" "a_box_in_use_is_not_idle_and_one_that_is_sleeps_or_is_closed" \
  registry 'idle && matches!(state, State::Live(_)) && entry.in_flight.load(Ordering::SeqCst) == 0' \
  'idle && matches!(state, State::Live(_))'

mutant "a box has to be idle for long enough" "a_box_in_use_is_not_idle_and_one_that_is_sleeps_or_is_closed" \
  registry 'Instant::now() + limits.lease >= until + bound' 'bound.is_zero() || until > Instant::now() || until <= Instant::now()'

mutant "a box is used until its command ends, whoever waits" "a_box_in_use_is_not_idle_and_one_that_is_sleeps_or_is_closed" \
  registry '        self.registry.start_lease(&self.entry);' '        let _ = &self.registry;'

mutant "a command marks its own box as in flight" "a_box_in_use_is_not_evicted_and_who_finds_all_busy_is_refused" \
  boxes 'Arc::new(self.registry().in_flight(owner));' 'Arc::new(self.registry().in_flight(&Owner::agent(agent)));'

mutant "a box is in flight no longer than its command" "whoever_goes_away_leaves_nothing_in_flight" \
  registry '        self.entry.in_flight.fetch_sub(1, Ordering::SeqCst);' ''

mutant "a command in a box is alone where there is no other" "a_command_is_alone_where_there_is_no_other" \
  registry 'self.entry.in_flight.load(Ordering::SeqCst) == 1' 'self.entry.in_flight.load(Ordering::SeqCst) >= 1'

mutant "a gone box is made anew" "a_gone_box_is_made_anew_once_and_the_command_runs_in_the_new_one" \
  boxes '                    made_anew = true;
                    used = self.in_box' '                    made_anew = true;
                    let _ = self.in_box'

mutant "a gone box is made anew once" "a_gone_box_is_made_anew_once_and_the_command_runs_in_the_new_one" \
  boxes 'if !made_anew => {' 'if !made_anew || made_anew => {'

mutant "a command that cannot be ended takes its box along" "a_command_that_cannot_be_ended_takes_its_box_along" \
  boxes 'if !output.gone {' 'if !output.gone && output.gone {'

mutant "a late verdict is about one box" "what_is_decided_late_does_not_touch_the_box_that_there_is_since" \
  registry 'live.services.values().any(|s| s.id == serving.id && s.run == serving.run)' \
  'live.services.values().any(|s| s.id == serving.id || s.run != serving.run)'

mutant "a late verdict is about one run of a box" "what_is_decided_late_does_not_touch_the_box_that_there_is_since" \
  registry 's.id == serving.id && s.run == serving.run' 's.id == serving.id'

mutant "the work folder of a throwaway box goes with it" "a_box_in_use_is_not_idle_and_one_that_is_sleeps_or_is_closed" \
  leaving '                        this.remove_folder(folder).await;' '                        let _ = folder;'

mutant "the work folder of a box is removed until that succeeds" "a_work_folder_that_cannot_be_removed_now_is_removed_later" \
  leaving 'let Err(e) = folders.remove(&name).await else { return };' 'let Some(e) = folders.remove(&name).await.err().filter(|_| false) else { return };'

# What is retained: how many are awake, and who makes room.

mutant "how many retained may be awake" "who_was_used_least_recently_makes_room" \
  registry 'if owner.retains() { self.limits().max_awake }' 'if owner.retains() { self.limits().max_awake + 1 }'

mutant "of what is retained the least recently used makes room" "who_was_used_least_recently_makes_room" \
  registry '        candidates.sort();' '        candidates.sort();
        candidates.reverse();'

mutant "something retained that goes already makes room" "one_that_goes_to_sleep_already_makes_room" \
  registry 'if let Some(mut gone) = going' 'if let Some(mut gone) = going.filter(|_| false)'

mutant "what is retained stays until the request is answered" "what_a_request_has_already_is_not_evicted_before_it_is_answered" \
  host 'retained.map(|owner| self.registry.in_flight(owner)).collect();' \
  'retained.filter(|_| false).map(|owner| self.registry.in_flight(owner)).collect();'

# What is retained: letting go only puts it to sleep.

mutant "what is retained only sleeps when it is let go" "what_is_retained_outlives_release_restart_eviction_and_its_containers" \
  registry '        if owner.retains() {
            join_all' '        if owner.retains() && !owner.retains() {
            join_all'

mutant "a retained work folder does not go with a container" "a_work_folder_that_is_retained_outlives_every_container_around_it" \
  owner '(folder != kept).then_some(folder)' '(folder != kept || !kept.is_empty()).then_some(folder)'

mutant "a retained work folder does not go with a failed making" "a_work_folder_that_is_retained_outlives_every_container_around_it" \
  provision 'folder.as_ref().filter(|_| !owner.retains()).map(' 'folder.as_ref().map('

mutant "what is retained is not removed for want of an owner" "what_no_state_file_knows_is_put_to_sleep_and_left_alone" \
  janitor 'if self.is_retained(unit) {' 'if self.is_retained(unit) && self.unknown.is_empty() {'

mutant "what is retained is not removed by a start that does not know it" "what_no_state_file_knows_is_put_to_sleep_and_left_alone" \
  recover 'if retained && (known.is_none() ||' 'if retained && (known.is_some() &&'

mutant "what is retained and cannot be adopted sleeps" "what_cannot_be_adopted_sleeps" \
  recover 'Some((owner, _)) if retained => Verdict::Sleep' 'Some((owner, _)) if retained && !retained => Verdict::Sleep'

mutant "what is retained without work sleeps" "what_runs_without_work_is_put_to_sleep_by_the_next_host" \
  recover '            if owner.retains() {' '            if owner.retains() && !owner.retains() {'

mutant "what is retained is adopted for its tenant" "what_runs_without_work_is_put_to_sleep_by_the_next_host" \
  recover 'work.tenant(&owner.agent) == keyed.tenant' 'work.tenant(&owner.agent) == keyed.tenant || keyed.retained'

# What is retained: making it, waking it, and making it anew around its data.

mutant "retained data keeps its passwords" "what_is_retained_outlives_release_restart_eviction_and_its_containers" \
  kept 'row.secrets.as_ref(), cancel' 'row.secrets.as_ref().filter(|_| false), cancel'

mutant "retained data without passwords is left alone" "data_whose_passwords_are_not_known_is_reported_and_left_alone" \
  kept 'if let Some(volume) = volumes.first() {' 'if let Some(volume) = volumes.first().filter(|_| false) {'

mutant "what is retained and was never whole is known" "a_volume_that_is_made_after_its_create_failed_is_in_nobodys_way" \
  kept '&& let Err(left) = self.delete_data(&row).await' '&& let Err(left) = self.delete_kept(&row).await'

mutant "what is retained and was whole once is left by a failure" "a_work_folder_that_is_retained_outlives_every_container_around_it" \
  kept '                if !row.made
' '                if (row.made || !row.made)
'

mutant "what is retained and was never whole leaves nothing" "a_create_that_loses_against_a_release_only_forgets_what_is_retained" \
  kept '                if !row.made
' '                if !row.made && row.made
'

mutant "what is retained and adopted is whole" "a_kill_before_it_is_noted_that_something_is_whole_takes_nothing_from_it" \
  recover 'owner.keyed.as_ref().filter(|k| k.retained) {' 'owner.keyed.as_ref().filter(|k| k.retained && !k.retained) {'

mutant "what is retained and woken is whole" "what_is_woken_is_whole" \
  kept 'self.store.set_made(keyed.key.as_str(), &keyed.service).map_err' 'self.store.set_asleep(keyed.key.as_str(), &keyed.service, 0).map_err'

mutant "two containers never have the same retained data" "a_work_folder_that_is_retained_outlives_every_container_around_it" \
  kept '            self.runtime.suspend(&unit.id, grace).await.map_err(|e| self.noted(&e))?;' '            let _ = grace;'

mutant "what is retained and lost its name goes first" "what_lost_its_name_goes_before_it_is_made_anew" \
  kept 'lost.filter(|s| found.as_ref().is_none_or(|unit| unit.id != s.id))' 'lost.filter(|s| found.as_ref().is_some_and(|unit| unit.id == s.id && unit.id != s.id))'

mutant "a retained thing that does not get well sleeps again" "a_wake_that_fails_leaves_everything" \
  kept '        self.sleep(owner, &unit.id).await;
        woken' '        woken'

mutant "a retained thing that cannot be woken sleeps again" "a_wake_that_fails_leaves_everything" \
  kept '                self.sleep(owner, &unit.id).await;
                return Err(match e {' '                return Err(match e {'

mutant "a retained thing that may not be made anew sleeps" "what_may_not_be_made_anew_now_sleeps" \
  kept '                self.sleep(owner, &unit.id).await;
                return Err(e);' '                return Err(e);'

mutant "how often a retained thing may be made anew" "what_may_not_be_made_anew_now_sleeps" \
  kept 'if let Err(e) = self.count_remake(entry) {' 'if let Some(e) = self.count_remake(entry).err().filter(|_| false) {'

mutant "a retained thing that is published otherwise is not adopted" "what_is_published_otherwise_is_made_anew_around_its_data" \
  recover 'if !ensure.is_published_as_wanted(&serving) {' 'if false && !ensure.is_published_as_wanted(&serving) {'

mutant "a retained thing that is published otherwise is made anew" "what_is_published_otherwise_is_made_anew_around_its_data" \
  kept '&& self.is_published_as_wanted(&serving) {' '&& (self.is_published_as_wanted(&serving) || serving.port.is_some()) {'

# What is retained: the sweep, and the end.

mutant "a sweep does not meet a call over something retained" "a_sweep_and_a_call_do_not_meet_over_what_somebody_else_started" \
  registry 'Some(owner) => self.while_absent(&owner, || true, self.ensure.sleep(&owner, &unit.id)).await,' 'Some(_) => self.ensure.suspend(unit).await,'

mutant "what is retained and paused sleeps too" "what_runs_paused_and_what_nobody_has_sleeps_after_the_grace" \
  janitor 'unit.state == UnitState::Ended' '(unit.state == UnitState::Ended || unit.state == UnitState::Paused)'

mutant "what is retained and sleeps is no stranger" "what_runs_paused_and_what_nobody_has_sleeps_after_the_grace" \
  janitor 'unit.state == UnitState::Ended' 'unit.state == UnitState::Ended && unit.name.is_empty()'

mutant "what is retained expires" "what_has_slept_for_long_enough_is_deleted_with_its_data" \
  registry '                expired.push((owner, row));' '                drop((owner, row));'

mutant "what is retained goes with its agent" "an_agent_that_is_removed_takes_along_what_it_retained" \
  host '        self.registry.delete_retained(agent).await;' ''

mutant "what is retained and awake does not age" "what_has_slept_for_long_enough_is_deleted_with_its_data" \
  registry '            if !matches!(*state, State::Absent) {
                continue;' '            if !matches!(*state, State::Absent) && matches!(*state, State::Absent) {
                continue;'

mutant "whether something retained has expired is decided anew" "what_was_used_since_it_was_found_expired_is_not_deleted" \
  registry '|| self.is_expired(row)' '|| self.is_expired(row) || true'

mutant "a throwaway box does not go with what is retained" "a_throwaway_box_does_not_go_with_what_its_tenant_retained" \
  kept 'is_none_or(|f| *f == folder)' 'is_none_or(|f| *f == folder || !folder.is_empty())'

mutant "what is retained is deleted after a look at the labels" "nobody_else_loses_anything_with_what_was_never_whole" \
  kept 'all.iter().all(|(k, v)| unit.labels.get(k) == Some(v)) &&' ''

mutant "what an earlier host left at work is ended" "keeping_schedules" \
  kept 'TakeIn::Serving(_), Some(_)) = (&good, how, &folder)' 'TakeIn::Serving(_), Some(_)) = (&good, how, &folder.clone().filter(|f| f.name.is_empty()))'

echo
echo "$((played - missed)) of $played are noticed"
[ "$missed" = 0 ]
