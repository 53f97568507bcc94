# Says that it is here, waits for its order, and then ends every process of one command, from within its container. Exit
# code 0: none is left.
# Argument: NAME=, with which every command's mark begins. The order is a line: 1 where no other command runs, else 0; for
# how many seconds to try; and what follows NAME= in the mark of the command. In its place `-` stands for every command that
# is still at work, whoever started it not being there any more; and nothing for whatever any command left.
#
# This shell has a mark of its own, by which it tells itself from what it looks for. It starts no program: a command that
# has used up the container's processes leaves none for that. Everything is stopped before anything is killed, since a
# process that sees another one go may start it again.

# Whether one of the marks stands in this environment; another one is noted in $marked. The shell drops the zero bytes
# between the variables. What may not be read counts as empty.
has_mark() {
  while IFS= read -r line || [ -n "$line" ]; do
    for mark in $marks; do
      case $line in *"$mark"*) return 0 ;; esac
    done
    case $line in *"$any_mark"*) marked=1 ;; esac
  done 2>/dev/null <"$1"
  return 1
}

# Reads what the kernel says of process $1 into $stat, and whose child it is into $parent.
look() {
  stat= parent=
  while IFS= read -r line || [ -n "$line" ]; do stat=$line; done 2>/dev/null <"/proc/$1/stat"
  # What stands in parentheses is the process's to choose: the fields begin after the last one.
  fields=${stat##*) }
  parent=${fields#* }
  parent=${parent%% *}
}

# Lists in $roots what was put into the container from outside, with all that comes from it, and in $marks their marks: some
# may have put off their own.
find_orphans() {
  marks= roots=' '
  for folder in /proc/[0-9]*; do
    candidate=${folder#/proc/}
    [ "$candidate" != 1 ] && [ "$candidate" != $$ ] || continue
    look "$candidate"
    case " 0$roots" in *" $parent "*) ;; *) continue ;; esac
    roots="$roots$candidate "
    while IFS= read -r line || [ -n "$line" ]; do
      case $line in *"$any_mark"*) ;; *) continue ;; esac
      # As long as every mark is; after it comes another variable. A guard that waits has none.
      value=${line#*"$any_mark"}
      value=${value%"${value#????????????????????????????????}"}
      case $value in '' | *[!0-9a-f]*) ;; *) marks="$marks $any_mark$value" ;; esac
    done 2>/dev/null <"$folder/environ"
  done
}

# Whether process $1 is the command's: it has the mark; or it has no mark at all, and is the child of one that is the
# command's, or no other command runs.
is_ours() {
  process=$1 marked=
  case $roots in *" $process "*) return 0 ;; esac
  # First what settles it for most. The shell reads byte by byte, and may be one of many that want the processor.
  has_mark "/proc/$process/environ" && return 0
  [ -z "$marked" ] || return 1
  look "$process"
  set -- $fields
  [ -n "$2" ] || return 1
  session=$4
  case $1 in
    # Dead, and only waited for; unless just its first thread is.
    [ZXx])
      [ "${18}" -gt 1 ] || return 1
      for environment in "/proc/$process/task"/[0-9]*/environ; do
        has_mark "$environment" && return 0
      done
      ;;
  esac
  [ -z "$marked" ] || return 1
  case " $found" in *" $parent "*) return 0 ;; esac
  [ "$alone" = 1 ] || return 1
  # The container's first process and its own children: nothing else can get into its session, and it may well start a
  # new one for each that goes.
  [ "$session" != 1 ] || return 1
  # A command that is just being started: until it is, it has neither environment nor mark.
  case "$parent $stat" in "0 "*"(runc:["*) return 1 ;; esac
}

# Stops everything but the container's first process and this one: a crowd leaves no time to look at each first.
hold() {
  for again in 1 2 3; do
    for folder in /proc/[0-9]*; do
      candidate=${folder#/proc/}
      [ "$candidate" = 1 ] || [ "$candidate" = $$ ] || kill -s STOP "$candidate" 2>/dev/null
    done
  done
}

# Stops all that are the command's, and lists them in $found. Where no other command runs, what else there is goes on, also
# where a shell like this one was killed after it had stopped everything.
stop() {
  found=
  set -- /proc/[0-9]*
  [ "$alone" = 1 ] && [ $# -gt 20 ] && hold
  for folder in /proc/[0-9]*; do
    candidate=${folder#/proc/}
    [ "$candidate" != 1 ] && [ "$candidate" != $$ ] || continue
    if is_ours "$candidate"; then
      kill -s STOP "$candidate" 2>/dev/null
      found="$found$candidate "
    elif [ "$alone" = 1 ]; then
      kill -s CONT "$candidate" 2>/dev/null
    fi
  done
}

seconds() {
  read -r now rest </proc/uptime
  now=${now%%.*}
}

any_mark=$1
echo here
# Nobody orders anything any more where the line does not come.
read -r alone patience value || exit 2
echo heard
marks=$any_mark$value roots=
if [ "$value" = - ]; then
  find_orphans
  [ "$roots" != ' ' ] || exit 0
fi
seconds
end=$((now + patience))
none=0 before= rounds=0 kills=0
while [ $none -lt 2 ]; do
  stop
  seconds
  if [ -z "$found" ]; then
    # Twice: one that was just being started can be missed once.
    none=$((none + 1))
  elif [ "$now" -gt "$end" ]; then
    exit 1
  elif [ "$found" = "$before" ] || [ $rounds -gt 8 ]; then
    none=0 before= rounds=0 kills=$((kills + 1))
    kill -s KILL $found 2>/dev/null
    # By now there is room for a program, and what the kernel has not ended yet takes its time.
    [ $kills -lt 20 ] || sleep 0.05 2>/dev/null
  else
    none=0 before=$found rounds=$((rounds + 1))
  fi
done
exit 0
