"""Chat messages to prompt text: the same rules as demo/chat_template.jinja, written a second time in Python.

The generator renders through this file, and check_template.py holds the two against each other.
Messages are plain dictionaries in the layout of the OpenAI chat interface, with `arguments` as an object.
"""
import json

START, END = "<|im_start|>", "<|im_end|>"

TOOLS_HEAD = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
TOOLS_TAIL = """
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell the user about function calls
</IMPORTANT>"""


def to_json(value):
    return json.dumps(value, ensure_ascii=False)


class Text:
    """Content to text. Counts pictures and videos over the whole conversation, for add_vision_id."""

    def __init__(self, number_them=False):
        self.number_them, self.images, self.videos = number_them, 0, 0

    def __call__(self, content, system=False, count=True):
        if content is None: return ""
        if isinstance(content, str): return content.strip()
        if not isinstance(content, list): raise ValueError("Unexpected content type.")
        return "".join(self._part(p, system, count) for p in content).strip()

    def _part(self, part, system, count):
        if "image" in part or "image_url" in part or part.get("type") == "image":
            if system: raise ValueError("System message cannot contain images.")
            self.images += count
            label = f"Picture {self.images}: " if self.number_them else ""
            return label + "<|vision_start|><|image_pad|><|vision_end|>"
        if "video" in part or part.get("type") == "video":
            if system: raise ValueError("System message cannot contain videos.")
            self.videos += count
            label = f"Video {self.videos}: " if self.number_them else ""
            return label + "<|vision_start|><|video_pad|><|vision_end|>"
        if "text" in part: return part["text"]
        raise ValueError("Unexpected item type in content.")


def call_text(call):
    """One tool call as the model writes it."""
    f = call.get("function", call)
    out = f"<tool_call>\n<function={f['name']}>\n"
    for key, value in f.get("arguments", {}).items():
        out += f"<parameter={key}>\n{value if isinstance(value, str) else to_json(value)}\n</parameter>\n"
    return out + "</function>\n</tool_call>"


def calls_text(content, calls):
    """The text of an answer with its tool calls after it."""
    if not calls: return content
    return content + ("\n\n" if content.strip() else "") + "\n".join(map(call_text, calls))


def last_query(messages, text):
    """Index of the last user message that is a real question and no wrapped tool response."""
    for i in range(len(messages) - 1, -1, -1):
        if messages[i]["role"] != "user": continue
        c = text(messages[i].get("content"), count=False)
        if not (c.startswith("<tool_response>") and c.endswith("</tool_response>")): return i
    raise ValueError("No user query found in messages.")


def _assistant(message, content, shown):
    thought = message.get("reasoning_content")
    if not isinstance(thought, str):
        thought = ""
        if "</think>" in content:
            thought = content.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
            content = content.split("</think>")[-1].lstrip("\n")
    head = f"<think>\n{thought.strip()}\n</think>\n\n" if shown else ""
    return f"{START}assistant\n{head}{calls_text(content, message.get('tool_calls'))}{END}\n"


def prompt(messages, tools=None, enable_thinking=None, preserve_thinking=None, add_generation_prompt=True,
           add_vision_id=None):
    if not messages: raise ValueError("No messages provided.")
    text = Text(bool(add_vision_id))
    out = ""
    system = text(messages[0].get("content"), system=True) if messages[0]["role"] == "system" else None
    if tools:
        out += f"{START}system\n{TOOLS_HEAD}" + "".join("\n" + to_json(t) for t in tools) + TOOLS_TAIL
        out += ("\n\n" + system if system else "") + END + "\n"
    elif system is not None:
        out += f"{START}system\n{system}{END}\n"
    query = last_query(messages, text)
    role_at = lambda i: messages[i]["role"] if 0 <= i < len(messages) else None
    for i, m in enumerate(messages):
        role = m["role"]
        content = text(m.get("content"), system=role == "system")
        if role == "system":
            if i: raise ValueError("System message must be at the beginning.")
        elif role == "user":
            out += f"{START}user\n{content}{END}\n"
        elif role == "assistant":
            out += _assistant(m, content, preserve_thinking is True or i > query)
        elif role == "tool":
            if i and role_at(i - 1) != "tool": out += START + "user"
            out += f"\n<tool_response>\n{content}\n</tool_response>"
            if role_at(i + 1) != "tool": out += END + "\n"
        else:
            raise ValueError("Unexpected message role.")
    if add_generation_prompt:
        out += START + "assistant\n" + ("<think>\n\n</think>\n\n" if enable_thinking is False else "<think>\n")
    return out


def reply(content, thought="", calls=None, think=False):
    """What the model should write after prompt(), stop token included."""
    return (thought + "\n</think>\n\n" if think else "") + calls_text(content, calls) + END
