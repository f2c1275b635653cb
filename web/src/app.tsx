/** The frame around the pages: sign-in, navigation, and the state of the connection. */

import { Component, type ReactNode, useEffect, useRef, useState, useSyncExternalStore } from "react";
import { findSession, session, signIn, signOut, watchSession } from "./api/client";
import { markTime } from "./history";
import { store, useLive } from "./live/store";
import { Experiments } from "./pages/experiments";
import { Incidents } from "./pages/incidents";
import { Model } from "./pages/model";
import { Models } from "./pages/models";
import { Overview } from "./pages/overview";
import { Placement } from "./pages/placement";
import { Plans } from "./pages/plans";
import { Timeline } from "./pages/timeline";
import { TryIt } from "./pages/try";
import { Command, Empty, Field, Loading, Page, Problem } from "./ui/parts";
import { textOf } from "./ui/hooks";
import { href, type Route, useRoute } from "./ui/route";
import { toggleTheme, useTheme } from "./ui/theme";

interface Section {
  name: string;
  path: string;
  icon: string;
}

/** The sections, with their icons as paths in a square of 24. */
const SECTIONS: readonly Section[] = [
  { name: "Overview", path: "", icon: "M4 13h4l3-8 4 14 3-6h2" },
  { name: "Incidents", path: "incidents", icon: "M12 4l9 16H3zM12 10v4M12 17v.5" },
  { name: "Models", path: "models", icon: "M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9" },
  { name: "Placement", path: "placement", icon: "M4 4h7v7H4zM13 4h7v4h-7zM13 10h7v10h-7zM4 13h7v7H4z" },
  { name: "Plans", path: "plans", icon: "M5 5h14M5 12h9M5 19h5M17 15v6M14 18h6" },
  { name: "Timeline", path: "timeline", icon: "M12 7v5l3 2M12 3a9 9 0 100 18 9 9 0 000-18z" },
  { name: "Try it", path: "try", icon: "M5 12h13M13 6l6 6-6 6" },
  { name: "Experiments", path: "experiments", icon: "M9 3h6M10 3v6l-5 9a2 2 0 002 3h10a2 2 0 002-3l-5-9V3" },
];

/** The address with a code of `packhorse dashboard`. */
const CODE = "#/sign-in?code=";

export function App() {
  const known = useSyncExternalStore(watchSession, session);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    if (!location.hash.startsWith(CODE)) return void findSession();
    const code = decodeURIComponent(location.hash.slice(CODE.length));
    // The code is of no more use, and stays in no history.
    history.replaceState(null, "", "#/");
    signIn({ code }).catch((cause) => {
      setError(textOf(cause));
      // There may be a session already.
      void findSession();
    });
  }, []);
  if (known === undefined) return <main className="sign-in">{error === null ? <Loading what="the dashboard" /> : <Problem text={error} />}</main>;
  return known === null ? <SignIn problem={error} /> : <Frame />;
}

function SignIn({ problem }: { problem: string | null }) {
  const [value, setValue] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const submit = async (event: React.FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      await signIn({ token: value.trim() });
    } catch (cause) {
      setError(textOf(cause));
      setBusy(false);
    }
  };
  return (
    <main className="sign-in">
      <form className="card" onSubmit={submit}>
        <h1>
          <Logo /> Packhorse
        </h1>
        <Field label="Admin token" hint="Or a key with the scope admin or read. You stay signed in for 12 hours.">
          {(id) => <input id={id} type="password" autoComplete="off" autoFocus required value={value} onChange={(event) => setValue(event.target.value)} />}
        </Field>
        <Problem text={error ?? problem} />
        <button type="submit" className="primary" disabled={busy || value.trim() === ""}>
          Sign in
        </button>
        <p className="hint">Or let this command open the dashboard, signed in:</p>
        <Command text="packhorse dashboard" />
      </form>
    </main>
  );
}

function Frame() {
  const { cluster } = useLive();
  const route = useRoute();
  const section = route.path[0] ?? "";
  const main = useRef<HTMLElement>(null);
  const place = route.path.join("/");
  useEffect(() => {
    store.start();
    return () => store.stop();
  }, []);
  useEffect(() => {
    const name = SECTIONS.find((s) => s.path === section)?.name ?? "Packhorse";
    document.title = `${route.path[1] ?? name} · Packhorse`;
    scrollTo(0, 0);
    // On a phone the sections are a row that scrolls.
    document.querySelector("nav ul a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [place]);
  return (
    <div className="frame">
      <nav aria-label="Sections">
        <a className="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
          Skip to content
        </a>
        <a className="brand" href="#/">
          <Logo />
          <span>Packhorse</span>
        </a>
        <ul>
          {SECTIONS.map((s) => (
            <li key={s.path}>
              <a href={s.path === "" ? "#/" : href([s.path])} aria-current={s.path === section ? "page" : undefined}>
                <svg viewBox="0 0 24 24" aria-hidden="true">
                  <path d={s.icon} />
                </svg>
                <span>{s.name}</span>
                {s.path === "" && cluster && cluster.findings.length > 0 && <span className="badge" aria-label={`${cluster.findings.length} findings`}>{cluster.findings.length}</span>}
              </a>
            </li>
          ))}
        </ul>
        <Foot />
      </nav>
      <main ref={main} id="main" tabIndex={-1}>
        <Lost />
        <Guard key={place}>{cluster ? <Content route={route} /> : <Loading what="the cluster" />}</Guard>
      </main>
    </div>
  );
}

function Content({ route }: { route: Route }) {
  const [section, name] = route.path;
  switch (section) {
    case undefined:
      return <Overview />;
    case "incidents":
      return <Incidents key={name} id={name} />;
    case "models":
      return name === undefined ? <Models /> : <Model key={name} name={name} />;
    case "placement":
      return <Placement />;
    case "plans":
      return <Plans />;
    case "timeline":
      return <Timeline />;
    case "try":
      return <TryIt key={name} name={name} />;
    case "experiments":
      return <Experiments />;
    default:
      return (
        <Page title="There is no such page">
          <Empty title="The address does not lead anywhere.">
            <a href="#/">Go to the overview</a>
          </Empty>
        </Page>
      );
  }
}

function Foot() {
  const theme = useTheme();
  const { connection, error } = useLive();
  const text = { live: "Live", connecting: "Connecting", lost: "Not connected" }[connection];
  const tone = { live: "good", connecting: "busy", lost: "bad" }[connection];
  return (
    <div className="foot">
      <span className={`state ${tone}`} title={error ?? undefined} role="status">
        <span className="dot" aria-hidden="true" />
        <span className="word">{text}</span>
      </span>
      <button type="button" className="plain" onClick={toggleTheme} aria-label={theme === "dark" ? "Use light colours" : "Use dark colours"}>
        {theme === "dark" ? "☀" : "☾"}
      </button>
      {session()?.scope === "read" && (
        <span className="muted" title={`${session()?.name}: a key with the scope read`}>
          Read-only
        </span>
      )}
      <button type="button" className="plain" onClick={() => void signOut()}>
        Sign out
      </button>
    </div>
  );
}

/** Says that what is shown is old. */
function Lost() {
  const { connection, cluster, error, since } = useLive();
  if (connection !== "lost") return null;
  return (
    <p className="problem" role="alert">
      Not connected{since !== null && ` since ${markTime(since, Date.now())}`}: {error}. {cluster ? "The page shows what was last known and connects again by itself." : "Connecting again…"}
    </p>
  );
}

function Logo() {
  return (
    <svg className="logo" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="7" />
      <path d="M6 17h5v9H6zM13.5 6h5v20h-5zM21 11h5v15h-5z" />
    </svg>
  );
}

/** Keeps the frame when a page fails. */
class Guard extends Component<{ children: ReactNode }, { error: string | null }> {
  override state = { error: null };

  static getDerivedStateFromError(error: unknown) {
    return { error: textOf(error) };
  }

  override render() {
    if (this.state.error === null) return this.props.children;
    return <Problem text={`This page has failed: ${this.state.error}. Reload it; if it fails again, please report it.`} />;
  }
}

